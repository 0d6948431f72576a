"""A small model in plain torch, with the parts of vLLM's models that are asked what rotates their keys."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.mamba.abstract import MambaBase

HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, HIDDEN, TRAINED = 16, 4, 2, 24, 32
LATENT = 20  # elements of MLA's latent before its rotated part
Rotate = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Attention(nn.Module):
    """Has what vLLM's attention layers have. It must be asked nothing but its keys."""

    def __init__(self, sliding_window: int | None = None) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_size_v = NUM_HEADS, NUM_KV_HEADS, HEAD_DIM
        self.sliding_window = sliding_window

    def forward(self, *_: Tensor) -> Tensor:
        raise AssertionError("there are no caches to attend to")


class Layer(nn.Module):
    """A layer whose keys go through ``rotate``; queries and keys are ``[num_tokens, num_heads * head_dim]``."""

    def __init__(self, rotate: Rotate | None, attention: nn.Module) -> None:
        super().__init__()
        self.queries = nn.Linear(HIDDEN, NUM_HEADS * HEAD_DIM)
        self.keys = nn.Linear(HIDDEN, NUM_KV_HEADS * HEAD_DIM)
        self.output = nn.Linear(NUM_HEADS * HEAD_DIM, HIDDEN)
        self.rotate, self.attention = rotate, attention

    def forward(self, positions: Tensor, states: Tensor) -> Tensor:
        queries, keys = self.queries(states), self.keys(states)
        values = keys.clone()
        if self.rotate is not None:
            queries, keys = self.rotate(positions, queries, keys)
        return states + self.output(self.attention(queries, keys, values))


class LatentLayer(Layer):
    """Calls attention as layers of MLA do: with the latent, and the one head that is rotated apart."""

    def forward(self, positions: Tensor, states: Tensor) -> Tensor:
        queries, latent, rotated = self.queries(states), states[:, :LATENT], self.keys(states)[:, None, :HEAD_DIM]
        assert self.rotate is not None
        _, rotated = self.rotate(positions, queries.view(-1, NUM_HEADS, HEAD_DIM), rotated)
        attended = self.attention(queries, latent, rotated, output_shape=(len(states), NUM_HEADS * HEAD_DIM))
        return states + self.output(attended)


class Recurrent(nn.Module, MambaBase):
    """Without a cache, it leaves its output as it was allocated."""

    kv_cache = ()
    mamba_type = get_state_dtype = get_state_shape = None  # type: ignore[assignment]

    def forward(self, states: Tensor, output: Tensor) -> None:
        pass


class RecurrentLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Recurrent()

    def forward(self, positions: Tensor, states: Tensor) -> Tensor:
        output = torch.arange(states.numel(), dtype=states.dtype).view(states.shape)
        self.attention(states, output=output)
        return states + output


class Missing(nn.Module):
    """What a later stage has in the place of an embedding."""

    def forward(self, *_: Tensor) -> Tensor:
        raise AssertionError("a later stage gets states")


class Model(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, HIDDEN)
        self.layers = nn.ModuleList(layers)

    def forward(
        self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any, inputs_embeds: Tensor | None
    ) -> Tensor:
        given = intermediate_tensors.tensors["hidden_states"] if input_ids is None else None
        states = self.embedding(input_ids) if given is None else given
        for layer in self.layers:
            states = layer(positions, states)
        return states

    def make_empty_intermediate_tensors(self, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Any:
        return types.SimpleNamespace(tensors={"hidden_states": torch.zeros(num_tokens, HIDDEN, dtype=dtype)})
