"""Rotation into the paged cache: the reference against exact angles, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from tests.kernels.rotary_store_cases import CASES, Case


@pytest.mark.parametrize("name", CASES)
def test_the_reference_rotates_by_the_scale_of_each_block_and_writes_nothing_else(name: str) -> None:
    tensors = CASES[name].tensors()
    ops.rotary_store(tensors.step())
    assert tensors.faults() == []


def test_a_step_without_tokens_leaves_the_cache_alone() -> None:
    tensors = Case(positions=(), slots=()).tensors()
    ops.rotary_store(dataclasses.replace(tensors.step(), positions=torch.zeros(0, dtype=torch.int64)))
    assert tensors.faults() == []


BAD: dict[str, tuple[str, Any]] = {
    "queries-of-float64": ("query", lambda given: given.double()),
    "keys-of-another-type": ("key", lambda given: given.half()),
    "fewer-queries-than-positions": ("query", lambda given: given[:2]),
    "heads-that-are-narrower-than-the-rotation": ("query", lambda given: given[..., :16]),
    "keys-of-other-width": ("key", lambda given: given[..., :24]),
    "more-values-than-keys": ("value", lambda given: torch.cat((given, given), dim=1)),
    "a-cache-of-another-shape": ("kv_cache", lambda given: given[..., :32]),
    "a-cache-of-int8": ("kv_cache", lambda given: given.to(torch.int8)),
    "a-cache-of-more-blocks-than-scales": ("kv_cache", lambda given: torch.cat((given, given))),
    "dims-that-are-not-next-to-each-other": ("key", lambda given: given.repeat_interleave(2, dim=-1)[..., ::2]),
    "positions-of-int32": ("positions", lambda given: given.int()),
    "every-second-slot": ("slot_mapping", lambda given: given[::2]),
    "outputs-of-another-type": ("out", lambda given: torch.zeros(5, 4, 32).half()),
    "a-float8-cache-without-its-scale": ("k_scale", lambda given: None),
    "a-scale-of-two": ("v_scale", lambda given: torch.ones(2)),
    "float8-queries-without-their-scale": ("q_scale", lambda given: None),
}
SAYS = {
    "queries-of-float64": "one data type, bfloat16, float16 or float32, got torch.float64",
    "keys-of-another-type": "got torch.float32, torch.float16 and torch.float32",
    "fewer-queries-than-positions": r"query must be \[5, num_heads, head_dim\], got \[2, 4, 32\]",
    "heads-that-are-narrower-than-the-rotation": r"rotary_dim must be in \[2, 16\], the width of a head, got 32",
    "keys-of-other-width": r"key and value must be \[5, num_kv_heads, 32\], got \[5, 2, 24\] and \[5, 2, 32\]",
    "more-values-than-keys": r"got \[5, 2, 32\] and \[5, 4, 32\]",
    "a-cache-of-another-shape": r"kv_cache must be \[num_blocks, 2, block_size, 64\], got \[6, 2, 4, 32\]",
    "a-cache-of-int8": "kv_cache must be bfloat16, float16, float32 or float8_e4m3fn, got torch.int8",
    "a-cache-of-more-blocks-than-scales": "block_scale must cover the cache's 48 slots, got 24",
    "dims-that-are-not-next-to-each-other": r"the last stride must be 1 .*, got \[1, 2, 1, 1\]",
    "positions-of-int32": r"positions must be int64, contiguous and of one dimension, got torch.int32 \[5\]",
    "every-second-slot": r"slot_mapping must be int64, contiguous .* with strides \(2,\)",
    "outputs-of-another-type": r"out must be torch.float32 or float8_e4m3fn \[5, 4, 32\], got torch.float16",
    "a-float8-cache-without-its-scale": "k_scale must be one float32 for a float8 cache, got None",
    "a-scale-of-two": r"v_scale must be one float32 for a float8 cache, got torch.float32 \[2\]",
    "float8-queries-without-their-scale": "q_scale must be one float32 for a float8 out, got None",
}


@pytest.mark.parametrize("name", BAD)
def test_what_would_be_computed_wrongly_is_refused_with_the_rule_and_the_value(name: str) -> None:
    field, change = BAD[name]
    case = CASES["float8-queries"] if "scale" in field else CASES["neox"]
    step = case.tensors().step()
    with pytest.raises(ValueError, match=SAYS[name]):
        ops.rotary_store(dataclasses.replace(step, **{field: change(getattr(step, field))}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"phases": torch.zeros(3, 16)}, r"phases must be int64 .* got torch.float32 \[3, 16\]"),
        ({"phases": torch.zeros(3, 0, dtype=torch.int64)}, r"at least one scale and one pair, .* \[3, 0\]"),
        ({"attention_factor": torch.ones(2)}, r"attention_factor must be float32 \[3\], .* got torch.float32 \[2\]"),
        (
            {"block_scale": torch.zeros(6)},
            r"block_scale must be int32 or int64 \[num_blocks\], got torch.float32 \[6\]",
        ),
        (
            {"block_scale": torch.zeros(12, dtype=torch.int32)[::2]},
            r"block_scale must be contiguous, got strides \(2,\)",
        ),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
    ],
)
def test_scales_that_do_not_go_together_are_refused(change: dict[str, Any], says: str) -> None:
    given: RotaryScales = CASES["neox"].scales()
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(given, **change)
