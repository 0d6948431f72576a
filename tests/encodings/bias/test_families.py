"""Each family against its published numbers, or transformers', which share nothing with ours."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from posenc_runtime.decoder.distance_bias import DistanceBiasEncoding
from posenc_runtime.decoder.positions import encoding
from posenc_runtime.encodings.bias import available, family, from_parameters
from posenc_runtime.encodings.distance import FURTHEST, DistanceBias, Flat, Table
from tests.decoder import tiny
from tests.tolerance import SOME_FLOAT32_OPERATIONS

HEADS = [1, 2, 8, 12, 40, 71]
DISTANCES = torch.tensor([0, 1, 2, 3, 15, 16, 17, 63, 127, 128, 129, 1000, 70001])

# What is worth trying beside the numbers that tiny decoders have.
PARAMETERS: dict[str, dict[str, Any]] = {
    "none": {"num_heads": 3},
    "alibi": {"num_heads": 3},
    "alibi_sqrt": {"num_heads": 3},
    "kerple_log": {"r1": torch.tensor([0.5, 1.0, 12.0]), "r2": torch.tensor([0.01, 1.0, 3.0])},
    "kerple_power": {"r1": torch.tensor([0.01, 0.5, 1.0]), "r2": torch.tensor([0.3, 1.0, 2.0])},
    "t5": {"relative_attention_bias": torch.linspace(-3, 3, 96).view(32, 3)},
}
DECODERS = [
    case
    for case, settings in tiny.CASES.items()
    if issubclass(encoding(settings["position_encoding_type"]), DistanceBiasEncoding)
]


@torch.no_grad()
def of_decoder(case: str) -> DistanceBias:
    bias: DistanceBias = tiny.model(case).model.position.bias()
    return bias


every_bias = pytest.mark.parametrize(
    "bias",
    [
        *(pytest.param(functools.partial(from_parameters, *family), id=family[0]) for family in PARAMETERS.items()),
        *(pytest.param(functools.partial(of_decoder, case), id=f"a decoder with {case}") for case in DECODERS),
    ],
)


def test_every_family_is_tested_with_numbers_of_its_own_or_a_decoders() -> None:
    assert set(available()) == {*PARAMETERS, *(of_decoder(case).bias_type for case in DECODERS)}


@pytest.mark.parametrize("num_heads", HEADS)
def test_alibi_slopes_are_blooms(num_heads: int) -> None:
    theirs = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(
        from_parameters("alibi", {"num_heads": num_heads}).form().slope, theirs, rtol=SOME_FLOAT32_OPERATIONS, atol=0
    )


@pytest.mark.parametrize("alibi_bias_max", [8, 4])
@pytest.mark.parametrize("num_heads", HEADS)
def test_alibi_slopes_are_mpts(num_heads: int, alibi_bias_max: int) -> None:
    theirs = -build_mpt_alibi_tensor(num_heads, 2, alibi_bias_max=alibi_bias_max)[:, 0, 0]
    ours = from_parameters("alibi", {"num_heads": num_heads, "alibi_bias_max": alibi_bias_max})
    torch.testing.assert_close(ours.form().slope, theirs, rtol=SOME_FLOAT32_OPERATIONS, atol=0)


def test_alibi_over_the_square_root_is_the_slope_times_it() -> None:
    ours = from_parameters("alibi_sqrt", {"num_heads": 8}).form().bias(torch.tensor([0, 1, 4, 9, 10000]))
    expected = torch.tensor([[-(2.0**-head) * root for root in (0, 1, 2, 3, 100)] for head in range(1, 9)])
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("buckets", "max_distance"),
    [
        pytest.param(32, 128, id="t5"),
        pytest.param(8, 20, id="small"),
        pytest.param(33, 1000, id="odd number of buckets"),
    ],
)
def test_t5_biases_are_those_of_a_transformers_decoder(buckets: int, max_distance: int) -> None:
    torch.manual_seed(0)
    config = T5Config(
        d_model=12,
        d_kv=4,
        num_heads=3,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=max_distance,
        is_decoder=True,
    )
    attention = T5Attention(config, has_relative_attention_bias=True)
    length = max_distance + 200
    with torch.no_grad():
        theirs = attention.compute_bias(length, length)[0, :, -1].flip(-1)
        ours = from_parameters(
            "t5",
            {
                "relative_attention_bias": attention.relative_attention_bias.weight,
                "relative_attention_max_distance": max_distance,
            },
        )
        assert torch.equal(ours.form().bias(torch.arange(length)), theirs)


def test_kerple_biases_are_the_papers_formulas() -> None:
    distances = [int(distance) for distance in DISTANCES]
    for name, formula in {
        "kerple_log": lambda r1, r2, d: -r1 * math.log(1 + r2 * d),
        "kerple_power": lambda r1, r2, d: -r1 * d**r2,
    }.items():
        parameters = PARAMETERS[name]
        pairs = zip(parameters["r1"].tolist(), parameters["r2"].tolist(), strict=True)
        expected = torch.tensor([[formula(r1, r2, d) for d in distances] for r1, r2 in pairs])
        torch.testing.assert_close(from_parameters(name, parameters).form().bias(DISTANCES), expected)


@pytest.mark.parametrize("name", ["kerple_log", "kerple_power"])
def test_whatever_was_trained_without_bounds_is_a_kerple_kernel(name: str) -> None:
    anything = torch.tensor([-math.inf, -1e30, -200.0, 0.0, 200.0, 1e30, math.inf])
    bias = family(name).from_unconstrained(anything, anything.flip(0))  # type: ignore[attr-defined]
    assert ((bias.r1 > 0) & (bias.r2 > 0) & bias.r1.isfinite() & bias.r2.isfinite()).all()
    assert bias.form().bias(DISTANCES).isfinite().all()
    assert bias.r1[3] == 1 and bias.r2[3] == 1
    if name == "kerple_power":
        assert (bias.r2 <= 2).all()


def test_no_bias_is_zero() -> None:
    assert not from_parameters("none", {"num_heads": 3}).form().bias(DISTANCES).any()


@torch.no_grad()
@every_bias
def test_past_its_reach_a_bias_has_dropped_as_far_as_was_asked(bias: Callable[[], DistanceBias]) -> None:
    form = bias().form()
    num_heads = form.bias(DISTANCES).shape[0]
    drop = torch.tensor([1e-3, 0.1, 1.0, 5.0, 30.0, 300.0], dtype=torch.float64).expand(num_heads, -1)
    reach = form.reach(drop)
    past = torch.stack([form.bias(row.floor() + 1)[head] for head, row in enumerate(reach)])
    reached = reach < FURTHEST
    assert (past <= -drop * (1 - SOME_FLOAT32_OPERATIONS))[reached].all()
    within = torch.stack([form.bias(row.floor())[head] for head, row in enumerate(reach)])
    assert (within >= -drop * (1 + SOME_FLOAT32_OPERATIONS))[reached].all()
    if isinstance(form, Table | Flat):
        assert not reached.any()


@torch.no_grad()
@every_bias
def test_where_even_the_own_key_may_be_dropped_nothing_but_a_table_is_reached(
    bias: Callable[[], DistanceBias],
) -> None:
    form = bias().form()
    drop = torch.tensor([0.0, -1.0, -100.0]).expand(form.bias(DISTANCES).shape[0], -1)
    reach = form.reach(drop)
    assert (reach == (FURTHEST if isinstance(form, Table) else -1)).all()


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        pytest.param("rope", {}, "bias_type must be one of .*alibi.*, got 'rope'", id="unknown"),
        pytest.param("alibi", {"num_heads": 0}, "num_heads must be at least 1, got 0", id="no heads"),
        pytest.param("alibi", {"num_heads": 2, "alibi_bias_max": 0}, "alibi_bias_max must be above 0", id="flat alibi"),
        pytest.param(
            "kerple_log",
            {"r1": torch.tensor([1.0]), "r2": torch.tensor([-1.0])},
            "rate must be finite and above 0",
            id="negative rate",
        ),
        pytest.param(
            "kerple_power",
            {"r1": torch.tensor([1.0]), "r2": torch.tensor([2.5])},
            "r2 must be at most 2",
            id="not positive definite",
        ),
        pytest.param(
            "t5", {"relative_attention_bias": torch.zeros(1, 2)}, "must hold at least 2 buckets", id="one bucket"
        ),
        pytest.param(
            "t5",
            {"relative_attention_bias": torch.zeros(32, 2), "relative_attention_max_distance": 16},
            "relative_attention_max_distance must be above 16, half the number of buckets, got 16",
            id="buckets do not fit",
        ),
    ],
)
def test_values_out_of_range_are_refused(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_parameters(name, parameters).form()
