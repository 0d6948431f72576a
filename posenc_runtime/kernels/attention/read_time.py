"""The arguments of attention with positions at read time: pages, turns of queries, and what models do to logits."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from posenc_runtime.encodings.far_pages import FarPages
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.rotary.phases import phases

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
_OF_PHASE = 2 * math.pi * 2.0**-64  # rad


@dataclasses.dataclass(frozen=True)
class ReadTime:
    """How the queries of a layer are turned for far pages.

    Attributes:
        pages: which pages are far, and how far.
        phases: int64 ``[1 or 2, rotary_dim // 2]``, 2^-64 turns: by how much a pair of the query turns for each token
            of ``distance - (position - first key)``. Each row is for one of ``pages.turns``. The product overflows,
            which drops whole turns, and is exact modulo one.
        is_neox_style: pairs are dimension i and dimension ``i + rotary_dim // 2``; otherwise neighbours.
    """

    pages: FarPages
    phases: Tensor
    is_neox_style: bool

    @classmethod
    def of(
        cls, pages: FarPages, inv_freq: Tensor, *, is_neox_style: bool, device: torch.device | None = None
    ) -> ReadTime:
        """For a layer that rotates by ``inv_freq``.

        Args:
            inv_freq: rad / token, floating point ``[rotary_dim // 2]``, of the rotation that keys are cached with. An
                attention factor has no part in it: queries and keys carry it already.
            device: where the caches are; None is the CPU.
        """
        of_turns = torch.stack([phases(inv_freq, turn.part) for turn in pages.turns])
        return cls(pages, of_turns.to(device or torch.device("cpu")), is_neox_style)

    @property
    def rotary_dim(self) -> int:
        return 2 * self.phases.shape[1]

    def turns(self, positions: Tensor, first_key: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each pair's angle, by which queries turn for a far page.

        Args:
            positions: int64 ``[num_queries]``.

        Returns:
            float32 ``[num_queries, rotary_dim // 2]`` each.
        """
        back = (positions - first_key).clamp(min=0)  # a query before the page does not read it
        leaks = (back < self.pages.bounded_from).long()
        distances = torch.where(leaks == 1, self.pages.turns[-1].distance, self.pages.distance)
        angle = ((distances - back)[:, None] * self.phases[leaks]).double() * _OF_PHASE
        return angle.cos().float(), angle.sin().float()


@dataclasses.dataclass(frozen=True)
class LayerLogits:
    """What a model's layer does to logits, and the scales of its cache.

    Attributes:
        sinks: float32 ``[num_heads]``, a logit of each head that takes part in the softmax and has no value (gpt-oss).
            The temperature does not multiply it. None for no sinks.
        soft_cap: scores s become ``soft_cap * tanh(s / soft_cap)`` (Gemma 2), after the temperature, as if it
            multiplied the query. 0 for none.
        k_scale, v_scale: float32, one element or ``[num_kv_heads]``: what 8-bit keys and values are multiplied by. None
            is 1.
    """

    sinks: Tensor | None = None
    soft_cap: float = 0.0
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


PLAIN = LayerLogits()


def check(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    read_time: ReadTime,
    out: Tensor,
    logits: LayerLogits,
) -> None:
    """Refuse what attention at read time would compute wrongly.

    Raises:
        ValueError: when shapes or data types do not fit each other, when a page is no multiple of the block, or when
            the heads are narrower than the rotation. The message names the rule and the value.
    """
    if query.dtype not in DTYPES or out.dtype != query.dtype or out.shape != query.shape:
        raise ValueError(
            "query and out must have one shape and one data type, bfloat16, float16 or float32, got "
            f"{list(query.shape)} {query.dtype} and {list(out.shape)} {out.dtype}"
        )
    if key_cache.dtype not in (query.dtype, *EIGHT_BITS) or value_cache.dtype != key_cache.dtype:
        raise ValueError(
            f"both caches must be {query.dtype} as queries are, float8_e4m3fn or float8_e5m2, got {key_cache.dtype} "
            f"and {value_cache.dtype}"
        )
    num_heads, head_dim = query.shape[1:]
    _, num_kv_heads, block_size, width = key_cache.shape
    if key_cache.shape != value_cache.shape or width != head_dim or num_heads % num_kv_heads:
        raise ValueError(
            f"both caches must be [num_blocks, num_kv_heads, block_size, {head_dim}], where num_kv_heads divides "
            f"{num_heads}, got {list(key_cache.shape)} and {list(value_cache.shape)}"
        )
    if read_time.rotary_dim > head_dim:
        raise ValueError(f"rotary_dim must be at most the head's width {head_dim}, got {read_time.rotary_dim}")
    if read_time.pages.page % block_size:
        raise ValueError(
            f"a page must be a multiple of the cache's block of {block_size} tokens, got {read_time.pages.page}"
        )
    for name in ("block_table", "query_start_loc", "seq_lens"):
        if getattr(batch, name).dtype != torch.int32:
            raise ValueError(f"{name} must be int32, got {getattr(batch, name).dtype}")
    if not 0 <= logits.soft_cap < math.inf:
        raise ValueError(f"soft_cap must be finite and at least 0, where 0 is none, got {logits.soft_cap}")
    _check_numbers("sinks", logits.sinks, (num_heads,))
    for name in ("k_scale", "v_scale"):
        _check_numbers(name, getattr(logits, name), (1, num_kv_heads))


def _check_numbers(name: str, numbers: Tensor | None, sizes: tuple[int, ...]) -> None:
    if numbers is None:
        return
    if numbers.dtype != torch.float32 or numbers.numel() not in sizes or not numbers.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous float32 with {' or '.join(map(str, dict.fromkeys(sizes)))} elements, got "
            f"{numbers.dtype} {list(numbers.shape)}"
        )
