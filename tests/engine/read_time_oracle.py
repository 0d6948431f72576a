"""A model of transformers in float64 whose queries read keys at the distances of a read-time method.

It shares nothing with the product: models, frequencies and rotations are transformers', distances those of
``tests.references.read_time``. A query that transformers has rotated to its own position is turned on, for each page,
to where it sees the page's keys at these distances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from tests.engine.greedy import Said, greedy
from tests.references.read_time import Distance, Factor

_NAME = "read_time_oracle"


@dataclasses.dataclass(frozen=True)
class Method:
    """A read-time method of a deployment.

    Attributes:
        page: tokens; the keys of an aligned page are all seen from one turned query.
    """

    distance: Distance
    factor: Factor
    page: int


class ReadTimeOracle:
    """Teacher-forced logprobs of a checkpoint.

    Args:
        model: of transformers, with its weights.
        inv_freq: rad / token of each pair, by the number of each layer that sees a whole request and rotates.
        is_neox_style: whether a pair is one element of each half of the rotated part, or two neighbours.
    """

    def __init__(
        self, model: nn.Module, method: Method, inv_freq: Mapping[int, Tensor], *, is_neox_style: bool = True
    ) -> None:
        self._method, self._inv_freq, self._is_neox_style = method, inv_freq, is_neox_style
        self._deltas = torch.zeros(0, 0, dtype=torch.float64)
        AttentionInterface.register(_NAME, self._attend)  # or transformers refuses the name
        self._model: Any = model.double().eval()
        self._model.set_attn_implementation(_NAME)
        self._model.set_experts_implementation("eager")  # another takes no float64

    @torch.no_grad()
    def score(self, prompt: list[int], token_ids: list[int]) -> Said:
        """The greedy choice at every step of an answer, and the logprob of the token that was chosen."""
        AttentionInterface.register(_NAME, self._attend)  # another oracle may have taken the name since
        ids = prompt + token_ids
        if len(ids) > len(self._deltas):
            self._deltas = torch.tensor(
                [[float(j + self._method.distance(i, j) - i) for j in range(len(ids))] for i in range(len(ids))],
                dtype=torch.float64,
            )
        # transformers takes angles in float32, whatever the model's data type is: at 400 tokens, up to 2^-16 rad off.
        with mock.patch.object(Tensor, "float", Tensor.double):
            logits = self._model(torch.tensor([ids]), use_cache=False).logits[0].double()
        return greedy(logits.log_softmax(-1)[len(prompt) - 1 : -1], token_ids)

    def _attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        dropout: float = 0.0,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """As transformers calls it: ``[1, num_heads, num_tokens, head_dim]``, queries and keys rotated."""
        length, group = query.shape[2], query.shape[1] // key.shape[1]
        keys, values = (states.repeat_interleave(group, 1) for states in (key, value))
        window = getattr(module, "sliding_window", None)
        if window is None and module.layer_idx in self._inv_freq:
            scores = self._scores(query, keys, self._inv_freq[module.layer_idx].double())
            factors = torch.tensor([self._method.factor(i) for i in range(length)], dtype=query.dtype)
            scores = scores * factors[:, None]
        else:
            scores = query @ keys.transpose(2, 3)
        scores = scores * scaling
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        place = torch.arange(length)
        hidden = place[None, :] > place[:, None]
        if window is not None:
            hidden |= place[None, :] <= place[:, None] - window
        scores = scores.masked_fill(hidden, -torch.inf)
        if s_aux is not None:
            sinks = s_aux.to(scores).view(1, -1, 1, 1).expand(1, -1, length, 1)
            scores = torch.cat((scores, sinks), -1)
        weights = scores.softmax(-1)[..., :length]
        return (weights @ values).transpose(1, 2).contiguous(), None

    def _scores(self, query: Tensor, keys: Tensor, inv_freq: Tensor) -> Tensor:
        length, page = query.shape[2], self._method.page
        scores = query.new_empty(*query.shape[:3], length)
        for first in range(0, length, page):
            of_page = slice(first, min(first + page, length))
            deltas = self._deltas[:length, of_page]
            later = torch.arange(first, of_page.stop)[None, :] > torch.arange(length)[:, None]
            assert (later | (deltas == deltas[:, :1])).all(), "one position of the query for each page"
            turned = self._turned(query, deltas[:, 0], inv_freq)
            scores[..., of_page] = turned @ keys[:, :, of_page].transpose(2, 3)
        return scores

    def _turned(self, query: Tensor, tokens: Tensor, inv_freq: Tensor) -> Tensor:
        angles = torch.outer(tokens, inv_freq)
        part, rest = query[..., : 2 * len(inv_freq)], query[..., 2 * len(inv_freq) :]
        x, y = part.chunk(2, -1) if self._is_neox_style else (part[..., ::2], part[..., 1::2])
        pairs = x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin()
        turned = torch.cat(pairs, -1) if self._is_neox_style else torch.stack(pairs, -1).flatten(-2)
        return torch.cat((turned, rest), -1)
