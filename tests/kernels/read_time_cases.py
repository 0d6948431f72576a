"""Batches for attention with positions at read time, and what must come out: the oracle's attention, in float64.

States are drawn before they are rotated. What a kernel gets is rotated in float64 and rounded to the data type; the
oracle gets the same, turned back. So a difference is the kernel's own, and not of what the tensors were rounded by.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any, Literal

import torch
from torch import Tensor

from posenc_runtime.encodings.far_pages import FarPages
from posenc_runtime.encodings.read_time import from_parameters
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time import LayerLogits, ReadTime
from tests.references.read_time import (
    Distance,
    Factor,
    dual_chunk_distance,
    logn_factor,
    no_factor,
    read_time_attention,
    rerope_distance,
    yarn_factor,
)
from tests.references.rotary import rotate

UNTOUCHED = 7.0  # in outputs of padding

_FACTORS: dict[str, Any] = {"logn": logn_factor, "yarn": yarn_factor}


@dataclasses.dataclass(frozen=True)
class Method:
    """A method for a model, and the same by the oracle's formulas."""

    name: str
    parameters: tuple[tuple[str, Any], ...]
    trained: int

    def pages(self, block_size: int) -> FarPages:
        return from_parameters(self.name, dict(self.parameters)).pages(self.trained, block_size)

    def distance(self) -> Distance:
        said = dict(self.parameters)
        if self.name == "dual_chunk":
            return dual_chunk_distance(self.trained, said["chunk_size"], said["local_size"])
        leak = None if said["leak"] == "none" else Fraction(said["leak"])
        return rerope_distance(self.trained, said["window"], said["page"], leak)

    def factor(self) -> Factor:
        kind = dict(self.parameters)["temperature"]
        return no_factor if kind == "none" else _FACTORS[kind](self.trained, self.trained)


def rerope(
    trained: int, window: int, page: int, *, temperature: str = "logn", leak: float | str = "none"
) -> Method:  # fmt: skip
    said = {"window": window, "page": page, "temperature": temperature, "leak": leak}
    return Method("rerope", tuple(said.items()), trained)


def dual_chunk(trained: int, chunk_size: int, local_size: int, *, temperature: str = "yarn") -> Method:
    said = {"chunk_size": chunk_size, "local_size": local_size, "temperature": temperature}
    return Method("dual_chunk", tuple(said.items()), trained)


USUAL = rerope(128, 64, 32)


@dataclasses.dataclass(frozen=True)
class Case:
    """Requests of a step and what their layer is like.

    Attributes:
        requests: tokens and, of those, queries of each.
        method: the pages are multiples of 32 tokens.
        layout: of the cache. ``columns`` is vLLM's on the CPU, where the keys of a block are columns; ``rows`` has
            heads before tokens, ``tokens_first`` tokens before heads and keys beside values. ``pairs`` is
            vLLM's with AMX.
        cache: the data type of an 8-bit cache.
        scales: whether k_scale and v_scale are one number or one of each KV head.
        padding: tokens after the last request's.
    """

    requests: tuple[tuple[int, int], ...]
    method: Method = USUAL
    num_heads: int = 2
    num_kv_heads: int = 1
    head_dim: int = 32
    rotary_dim: int | None = None
    is_neox_style: bool = True
    block_size: int = 32
    dtype: torch.dtype = torch.float32
    layout: Literal["columns", "rows", "tokens_first", "pairs"] = "columns"
    cache: torch.dtype | None = None
    scales: Literal["none", "tensor", "head"] = "none"
    sinks: bool = False
    soft_cap: float = 0.0
    padding: int = 0
    rope_theta: float = 10_000.0

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def inv_freq(self) -> Tensor:
        pairs = (self.rotary_dim or self.head_dim) // 2
        return self.rope_theta ** (-torch.arange(pairs, dtype=torch.float64) / pairs)

    def read_time(self) -> ReadTime:
        return ReadTime.of(self.method.pages(self.block_size), self.inv_freq, is_neox_style=self.is_neox_style)

    def batch(self) -> PagedBatch:
        blocks = [math.ceil(length / self.block_size) for length, _ in self.requests]
        table = torch.zeros(len(blocks), max(blocks) + 1, dtype=torch.int32)  # block 0 is nobody's, and not a number
        order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(5), dtype=torch.int32) + 1
        for row, own in zip(table, order.split(blocks), strict=True):
            row[: len(own)] = own
        queries = torch.tensor([0] + [own for _, own in self.requests], dtype=torch.int32)
        lengths = torch.tensor([length for length, _ in self.requests], dtype=torch.int32)
        return PagedBatch(table, queries.cumsum(0, dtype=torch.int32), lengths, int(queries.max()), int(lengths.max()))


class Tensors:
    """A case's tensors: whatever a kernel must not read is not a number.

    Attributes:
        query, out: ``[num_tokens, num_heads, head_dim]``.
        key_cache, value_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``.
        both: ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``, if keys are columns.
        logits: sinks, cap and scales.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        draw = torch.Generator().manual_seed(4)
        heads = case.num_kv_heads
        scales = torch.tensor([0.5 + 0.25 * head for head in range(heads)], dtype=torch.float32)
        k_scale, v_scale = {"none": (None, None), "tensor": (scales[:1], scales[:1] + 1), "head": (scales, scales + 1)}[
            case.scales
        ]
        sinks = torch.linspace(-1, 2, case.num_heads) if case.sinks else None
        self.logits = LayerLogits(sinks, case.soft_cap, k_scale, v_scale)
        self._plain: list[tuple[Tensor, Tensor, Tensor]] = []
        self._allocate()
        queries = []
        # float32 as in tables; whatever was rounded further would be an error of both
        inv_freq = case.inv_freq.float().double()
        for (length, own), row in zip(case.requests, case.batch().block_table, strict=True):
            query = torch.randn(own, case.num_heads, case.head_dim, generator=draw).double()
            key = torch.randn(length, heads, case.head_dim, generator=draw).double()
            value = torch.randn(length, heads, case.head_dim, generator=draw).double()
            positions = torch.arange(length).double()
            query = self._turned(query, positions[-own:], inv_freq).to(case.dtype)
            cached_key = self._cached(self._turned(key, positions, inv_freq), k_scale)
            cached_value = self._cached(value, v_scale)
            slots = torch.arange(length)
            blocks, offsets = row[slots // case.block_size].long(), slots % case.block_size
            write = _write_pairs if case.layout == "pairs" else _write
            write(self.key_cache, cached_key, blocks, offsets)
            write(self.value_cache, cached_value, blocks, offsets, of_values=True)
            self._plain.append(
                (
                    self._turned(query.double(), -positions[-own:], inv_freq),
                    self._turned(_scaled(cached_key, k_scale), -positions, inv_freq),
                    _scaled(cached_value, v_scale),
                )
            )
            queries.append(query)
        nobody = torch.full((case.padding, case.num_heads, case.head_dim), math.nan, dtype=case.dtype)
        self.query = torch.cat((*queries, nobody))
        self.out = torch.full_like(self.query, UNTOUCHED)

    def _turned(self, states: Tensor, positions: Tensor, inv_freq: Tensor) -> Tensor:
        ones = torch.ones(len(positions), len(inv_freq), dtype=torch.float64)
        return rotate(states, positions, inv_freq, ones, self.case.is_neox_style)

    def _cached(self, states: Tensor, scale: Tensor | None) -> Tensor:
        if scale is not None:
            states = states / scale.double().view(1, -1, 1)
        return states.float().to(self.case.cache or self.case.dtype)

    def _allocate(self) -> None:
        case = self.case
        num_blocks, dtype = int(case.batch().block_table.max()) + 1, case.cache or case.dtype
        heads, size, width = case.num_kv_heads, case.block_size, case.head_dim
        shape = (
            (num_blocks, size, heads, 2 * width)
            if case.layout == "tokens_first"
            else (num_blocks, heads, size, 2 * width)
        )
        both = torch.full(shape, math.nan, dtype=torch.float32).to(dtype)
        if case.layout == "tokens_first":
            both = both.transpose(1, 2)
        if case.layout == "columns":
            keys, values = both.view(num_blocks, heads, 2, -1).unbind(2)
            self.key_cache = keys.view(num_blocks, heads, width, size).transpose(2, 3)
            self.value_cache = values.view(num_blocks, heads, size, width)
        elif case.layout == "pairs":
            keys, values = both.view(num_blocks, heads, 2, size, width).unbind(2)
            self.key_cache, self.value_cache = keys, values
        else:
            self.key_cache, self.value_cache = both[..., :width], both[..., width:]
        self.both = both

    @functools.cached_property
    def expected(self) -> Tensor:
        """float64 ``[num_queries, num_heads, head_dim]``."""
        case = self.case
        sinks = None if self.logits.sinks is None else self.logits.sinks.double()
        return torch.cat(
            [
                read_time_attention(
                    *request,
                    case.scale,
                    case.inv_freq.float().double(),
                    case.method.distance(),
                    case.method.factor(),
                    is_neox_style=case.is_neox_style,
                    sinks=sinks,
                    soft_cap=case.soft_cap,
                )
                for request in self._plain
            ]
        )

    def error(self) -> float:
        """Root mean square of what the outputs are off by, over all queries; not a number if one is not written."""
        return float((self.out[: len(self.expected)].double() - self.expected).square().mean().sqrt())

    def wrote_padding(self) -> bool:
        return not bool((self.out[len(self.expected) :] == UNTOUCHED).all())


def _write(cache: Tensor, states: Tensor, blocks: Tensor, offsets: Tensor, *, of_values: bool = False) -> None:
    if cache.element_size() == 1:
        cache, states = cache.view(torch.uint8), states.view(torch.uint8)
    cache[blocks, :, offsets] = states


def _write_pairs(cache: Tensor, states: Tensor, blocks: Tensor, offsets: Tensor, *, of_values: bool = False) -> None:
    """As vLLM does with AMX: 16 keys by pairs of dimensions, and 16 dimensions of values by pairs of tokens."""
    if cache.element_size() == 1:
        cache, states = cache.view(torch.uint8), states.view(torch.uint8)
    num_blocks, heads, size, width = cache.shape
    if of_values:
        ordered = cache.view(num_blocks, heads, width // 16, size // 2, 16, 2)
        ordered[blocks, :, :, offsets // 2, :, offsets % 2] = states.unflatten(-1, (-1, 16))
    else:
        ordered = cache.view(num_blocks, heads, size // 16, width // 2, 16, 2)
        ordered[blocks, :, offsets // 16, :, offsets % 16] = states.unflatten(-1, (-1, 2))


def _scaled(states: Tensor, scale: Tensor | None) -> Tensor:
    return states.double() if scale is None else states.double() * scale.double().view(1, -1, 1)


# below the trained length, at its edge, past it alone, a chunk that straddles it and pages, drafted tokens, a prompt
EVERY_KIND = ((7, 1), (128, 1), (129, 1), (301, 1), (150, 60), (260, 4), (40, 40))

CASES = {
    "every kind": Case(EVERY_KIND),
    "a whole prompt": Case(((220, 220),), num_heads=1, padding=3),
    "yarn's temperature": Case(EVERY_KIND, rerope(128, 64, 64, temperature="yarn")),
    "no temperature": Case(EVERY_KIND, rerope(128, 64, 32, temperature="none")),
    "leaky": Case(EVERY_KIND, rerope(128, 64, 32, leak=4)),
    "leaky, the oldest pages bounded": Case(EVERY_KIND, rerope(128, 64, 32, leak=2)),
    "a page that is bounded for some rows alone": Case(((260, 80),), rerope(128, 64, 32, leak=2)),
    "a leak of more than any request has tokens": Case(((301, 2), (140, 1)), rerope(128, 64, 32, leak=1e30)),
    "leaky by 2.5": Case(((301, 2), (140, 1)), rerope(128, 64, 32, leak=2.5), is_neox_style=False),
    "a window of one page": Case(((400, 3), (131, 1)), rerope(64, 32, 32)),
    "dual chunk": Case(EVERY_KIND, dual_chunk(128, 128, 32)),
    "dual chunk, trained on more": Case(((300, 60), (120, 1)), dual_chunk(160, 96, 32)),
    "gptj": Case(EVERY_KIND, is_neox_style=False),
    "gptj, partial": Case(((301, 1), (150, 60)), is_neox_style=False, rotary_dim=8),
    "partial": Case(((301, 1), (150, 60)), rotary_dim=16, head_dim=48),
    "partial, an odd number of pairs": Case(((301, 1), (150, 4)), rotary_dim=20, head_dim=80),
    "eight heads to one": Case(((301, 1), (150, 9)), num_heads=8),
    "three heads to one": Case(((301, 1), (150, 30)), num_heads=6, num_kv_heads=2),
    "forty heads to one": Case(((150, 3),), num_heads=40, head_dim=16),
    "heads of 64": Case(EVERY_KIND, num_heads=4, num_kv_heads=2, head_dim=64),
    "heads of 128": Case(((301, 1), (150, 9)), head_dim=128, block_size=64, method=rerope(128, 64, 64)),
    "heads of 256": Case(((301, 1), (150, 9)), head_dim=256),
    "sinks": Case(EVERY_KIND, sinks=True),
    "soft cap": Case(EVERY_KIND, soft_cap=2.0),
    "a wide soft cap": Case(EVERY_KIND, soft_cap=50.0),
    "sinks and a soft cap": Case(EVERY_KIND, num_heads=4, sinks=True, soft_cap=5.0, method=dual_chunk(128, 128, 32)),
    "keys in parts": Case(((1100, 1), (2060, 2)), rerope(512, 256, 64), sinks=True),
    "pages wider than parts": Case(((4200, 1),), rerope(2048, 1536, 512), num_heads=1, head_dim=16),
    "blocks of 128": Case(((700, 1), (600, 130)), rerope(512, 256, 128), block_size=128),
    "bfloat16": Case(EVERY_KIND, dtype=torch.bfloat16, num_heads=4, num_kv_heads=2, head_dim=64),
    "bfloat16, heads of 48": Case(
        EVERY_KIND, dtype=torch.bfloat16, num_heads=5, head_dim=48, rotary_dim=20, sinks=True, soft_cap=5.0
    ),
    "bfloat16, keys in parts": Case(((1100, 1), (2060, 2), (700, 90)), rerope(512, 256, 64), dtype=torch.bfloat16),
    "float16": Case(EVERY_KIND, dtype=torch.float16, is_neox_style=False),
    "e4m3": Case(EVERY_KIND, cache=torch.float8_e4m3fn, scales="tensor", dtype=torch.bfloat16),
    "e4m3, of heads": Case(EVERY_KIND, cache=torch.float8_e4m3fn, scales="head", num_heads=4, num_kv_heads=2),
    "e5m2, of heads": Case(EVERY_KIND, cache=torch.float8_e5m2, scales="head", num_heads=4, num_kv_heads=2),
    "e5m2, float16": Case(EVERY_KIND, cache=torch.float8_e5m2, dtype=torch.float16),
}  # fmt: skip

# The same where vLLM keeps keys and values in the order of AMX.
PAIRS_CASES = {
    name: dataclasses.replace(CASES[name], layout="pairs", dtype=torch.bfloat16)
    for name in (
        *("every kind", "a whole prompt", "leaky", "dual chunk", "gptj, partial", "three heads to one", "heads of 64"),
        *(
            "leaky, the oldest pages bounded",
            "heads of 128",
            "sinks and a soft cap",
            "keys in parts",
            "blocks of 128",
            "e4m3",
            "e4m3, of heads",
        ),
        "e5m2, of heads",
    )
}

# The same for kernels on CUDA, whose caches have rows, and fewer requests: the interpreter takes its time.
_SOME = ((7, 1), (129, 1), (301, 1), (150, 40), (260, 4), (40, 40))
TRITON_CASES = {
    name: dataclasses.replace(
        case,
        requests=_SOME if case.requests is EVERY_KIND else case.requests,
        layout="tokens_first" if index % 2 else "rows",
    )
    for index, (name, case) in enumerate(CASES.items())
    if name not in ("forty heads to one", "pages wider than parts", "keys in parts", "blocks of 128", "a whole prompt")
} | {
    "a whole prompt": Case(((150, 150),), num_heads=1, padding=3, layout="tokens_first"),
    "keys in parts": Case(((700, 1), (600, 2)), rerope(256, 128, 64), sinks=True, layout="tokens_first", block_size=16),
    "a page that one row is past and another before": Case(
        ((200, 70),), rerope(64, 32, 32), layout="rows", num_heads=1
    ),
}
