"""A Llama or Qwen3 in plain torch that rotates all of its cached keys anew at every step (YaRN, section 3.3).

It shares no code with the product: frequencies come from transformers, attention and cache are written out here.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import pathlib

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.checkpoints import TRAINED
from tests.engine.greedy import Said, greedy
from tests.engine.transformers_oracle import rope_parameters


class UnrotatedOracle:
    """Teacher-forced logprobs of a request that may change its scale with every token."""

    def __init__(self, model: pathlib.Path, rope_type: str, scales: tuple[int, ...]) -> None:
        self._config = AutoConfig.from_pretrained(model)
        self._weights = {
            name.removeprefix("model."): weight.float()
            for name, weight in load_file(model / "model.safetensors").items()
        }
        self._scales = scales
        self._rotations = {scale: self._rotation(rope_type, scale) for scale in scales}

    def scale_at(self, position: int, first_scale: int) -> int:
        """The smallest scale that covers a token at this position, and never less than the first."""
        reach = [scale * TRAINED for scale in self._scales]
        return max(first_scale, self._scales[bisect.bisect_left(reach, position + 1)])

    @torch.no_grad()
    def score(
        self, prompt: list[int], token_ids: list[int], first_scale: int, reused: tuple[int, int] = (0, 1)
    ) -> Said:
        """The greedy choice at every step of an answer, and the logprob of the token that was chosen.

        Args:
            reused: tokens at the beginning that were computed at another scale, and that scale.
        """
        cache = _Cache(self._config.num_hidden_layers)
        ids = prompt + token_ids[:-1]
        num_reused, reused_scale = reused
        scales = [reused_scale] * num_reused
        scales += [self.scale_at(position, first_scale) for position in range(num_reused, len(ids))]
        said = []
        # Tokens of one scale attend to one rotation of the cache, so they can be taken in one go.
        for scale, of_scale in itertools.groupby(range(len(ids)), key=scales.__getitem__):
            said.append(self._forward([ids[position] for position in of_scale], scale, cache))
        return greedy(torch.cat(said)[len(prompt) - 1 :], token_ids)

    def _forward(self, ids: list[int], scale: int, cache: _Cache) -> Tensor:
        config = self._config
        hidden = self._weights["embed_tokens.weight"][torch.tensor(ids)]
        for layer in range(config.num_hidden_layers):
            prefix = f"layers.{layer}."
            normed = self._norm(hidden, prefix + "input_layernorm")
            query, key, value = (
                (normed @ self._weights[f"{prefix}self_attn.{name}_proj.weight"].T).view(len(ids), -1, config.head_dim)
                for name in "qkv"
            )
            if f"{prefix}self_attn.q_norm.weight" in self._weights:  # Qwen3's, over each head
                query, key = (
                    self._norm(query, f"{prefix}self_attn.q_norm"),
                    self._norm(key, f"{prefix}self_attn.k_norm"),
                )
            keys, values = cache.extend(layer, key, value)
            attended = self._attend(query, keys, values, scale)
            hidden = hidden + attended @ self._weights[prefix + "self_attn.o_proj.weight"].T
            normed = self._norm(hidden, prefix + "post_attention_layernorm")
            gate, up = (normed @ self._weights[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            hidden = hidden + (torch.nn.functional.silu(gate) * up) @ self._weights[prefix + "mlp.down_proj.weight"].T
        return (self._norm(hidden, "norm") @ self._weights["lm_head.weight"].T).log_softmax(-1)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: int) -> Tensor:
        positions = torch.arange(keys.shape[0])
        own = positions[-query.shape[0] :]
        group = query.shape[1] // keys.shape[1]
        query, keys = self._rotate(query, own, scale), self._rotate(keys, positions, scale)
        scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(group, 1)) / keys.shape[-1] ** 0.5
        scores = scores.masked_fill(positions[None, None] > own[None, :, None], float("-inf"))
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values.repeat_interleave(group, 1))
        return attended.flatten(1)

    def _rotate(self, states: Tensor, positions: Tensor, scale: int) -> Tensor:
        inv_freq, attention_factor = self._rotations[scale]
        angle = positions[:, None].double() * inv_freq.double()
        cos, sin = ((f(angle) * attention_factor).float()[:, None] for f in (torch.cos, torch.sin))
        first, second = states.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def _rotation(self, rope_type: str, scale: int) -> tuple[Tensor, float]:
        config = copy.deepcopy(self._config)
        config.rope_parameters = rope_parameters(
            rope_type,
            scale,
            rope_theta=self._config.rope_parameters["rope_theta"],
            rotary_dim=self._config.head_dim,
            original_max_position_embeddings=TRAINED,
        )
        kind = config.rope_parameters["rope_type"]
        if kind == "default":
            exponent = torch.arange(0, config.head_dim, 2).float() / config.head_dim
            inv_freq = 1.0 / config.rope_parameters["rope_theta"] ** exponent
            if rope_type == "proportional" and scale > 1:  # of four pairs the slowest stands still
                inv_freq[3 * len(inv_freq) // 4 :] = 0
            return inv_freq, 1.0
        inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        return inv_freq, float(attention_factor)

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        mean = hidden.pow(2).mean(-1, keepdim=True)
        return hidden * torch.rsqrt(mean + self._config.rms_norm_eps) * self._weights[f"{name}.weight"]


class _Cache:
    """Un-rotated keys and values of every layer."""

    def __init__(self, num_layers: int) -> None:
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self._keys[layer], self._values[layer]
        keys = key if keys is None else torch.cat((keys, key))
        values = value if values is None else torch.cat((values, value))
        self._keys[layer], self._values[layer] = keys, values
        return keys, values
