"""Keys that have a scale of their own, one for each token and head, are turned, and their scales with them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable

import pytest
import torch

from posenc_runtime.encodings.scaling.yarn import Yarn
from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary import reference
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange
from tests.kernels.own_scale_cases import CASES, Q_MAX, Case
from tests.kernels.processes import output_of
from tests.kernels.rerotate_cases import SOURCES
from tests.tolerance import OWN_SCALES_FLOAT8, OWN_SCALES_INT8


@pytest.fixture(scope="module")
def interpreted() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(output_of("interpret_own_scales.py", TRITON_INTERPRET="1"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_turns_keys_and_lets_their_scales_grow_where_they_must(
    name: str, interpreted: dict[str, list[str]]
) -> None:
    assert interpreted[name] == []


@pytest.mark.parametrize(
    "implementation",
    [pytest.param(ops.rerotate, id="served"), pytest.param(reference.rerotate_own_scales, id="reference")],
)
@pytest.mark.parametrize("name", CASES)
def test_the_reference_turns_keys_and_lets_their_scales_grow_where_they_must(
    name: str, implementation: Callable[..., None]
) -> None:
    case = CASES[name]
    before = case.memory()
    after = [of_layer.clone() for of_layer in before]
    implementation(case.caches(after), case.moves(), case.change(), case.layout())
    assert case.faults(before, after) == []


@pytest.mark.parametrize("dtype", Q_MAX, ids=["int8", "float8"])
def test_some_scales_have_to_grow_and_some_do_not(dtype: torch.dtype) -> None:
    """Of the cases above, so that both are shown."""
    case = Case(dtype)
    [cache] = case.caches(case.memory())
    growths = torch.cat(
        [
            case.turned(cache.view(torch.uint8)[source], first)[1].flatten()
            for source, first in zip(SOURCES, case.first_positions().tolist(), strict=True)
        ]
    )
    assert 0.2 < (growths > 1).double().mean() < 0.8


@pytest.mark.parametrize(
    ("dtype", "bounds"), [(torch.int8, OWN_SCALES_INT8), (torch.float8_e4m3fn, OWN_SCALES_FLOAT8)], ids=["int8", "e4m3"]
)
def test_keys_drift_with_every_crossing_no_further_than_rounding_takes_them(
    dtype: torch.dtype, bounds: tuple[float, ...]
) -> None:
    spec = RotarySpec(rotary_dim=128, rope_theta=500_000.0, original_max_position_embeddings=8192)
    path = [Yarn().frequencies(spec, scale) for scale in (1, 2, 4, 8, 16, 32, 64)]
    plain = torch.randn(16, 2, 32, 128, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    first_positions = torch.arange(16) * 8_000
    positions = (first_positions[:, None] + torch.arange(32))[:, None, :, None].double()

    def rotated(of_scale: int) -> torch.Tensor:
        frequencies = path[of_scale]
        angle = positions * frequencies.inv_freq.float().double()
        turned = torch.complex(*plain.chunk(2, dim=-1)) * torch.polar(torch.ones(()).double(), angle)
        return frequencies.attention_factor * torch.cat((turned.real, turned.imag), dim=-1)

    scale = (rotated(0).abs().amax(-1, keepdim=True) / Q_MAX[dtype]).float()
    numbers = rotated(0) / scale
    numbers = numbers.round() if dtype == torch.int8 else numbers
    rows = torch.cat((numbers.to(dtype).view(torch.uint8), scale.view(torch.uint8)), dim=-1)
    cache = torch.cat((rows, torch.zeros_like(rows)), dim=-1).view(dtype)
    layout = KeyLayout(32, 128, 128, True, row_dim=264, has_own_scales=True)
    blocks, drift = torch.arange(16), []
    for index, (before, after) in enumerate(itertools.pairwise(path), start=1):
        ops.rerotate([cache], BlockMoves(blocks, blocks, first_positions), ScaleChange.between(before, after), layout)
        row = cache.view(torch.uint8)
        stands_for = row[..., :128].view(dtype).double() * row[..., 128:132].contiguous().view(torch.float32)
        drift.append(((stands_for - rotated(index)).norm() / rotated(index).norm()).item())
    assert all(found <= bound for found, bound in zip(drift, bounds, strict=True)), drift


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"axis_of_pair": torch.zeros(8, dtype=torch.int64)}, "must have no order and no axes"),
        ({"row_dim": 34}, "must be multiples of 4"),
        ({"row_dim": 32}, "must have room for a scale after the key, got 32 and 32"),
    ],
    ids=["axes", "a row of odd width", "no room"],
)
def test_layouts_that_no_such_cache_has_are_refused(changed: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(KeyLayout(4, 32, 16, True, row_dim=72, has_own_scales=True), **changed)  # type: ignore[arg-type]


def test_caches_whose_scales_no_program_could_read_are_refused() -> None:
    layout = KeyLayout(4, 32, 32, True, row_dim=72, has_own_scales=True)
    layout.check([torch.zeros(2, 1, 4, 72, dtype=torch.int8)])
    with pytest.raises(ValueError, match=r"must be int8 or float8_e4m3fn, got torch\.uint8 at layer 0"):
        layout.check([torch.zeros(2, 1, 4, 72, dtype=torch.uint8)])
    with pytest.raises(ValueError, match="rows with scales must be contiguous"):
        layout.check([torch.zeros(2, 1, 4, 144, dtype=torch.int8)[..., ::2]])
