"""Frequencies against transformers' ``ROPE_INIT_FUNCTIONS``, which shares nothing with ours."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import HunYuanDenseV1Config, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1RotaryEmbedding

from posenc_runtime.encodings.scaling import from_parameters
from posenc_runtime.encodings.spec import RotarySpec
from tests.tolerance import INV_FREQ_BLENDED_RELATIVE, INV_FREQ_RELATIVE

# (head_dim, partial_rotary_factor, rope_theta, trained length)
SHAPES = [
    pytest.param(128, 1.0, 500000.0, 8192, id="llama-3-8b"),
    pytest.param(128, 1.0, 1000000.0, 32768, id="qwen3"),
    pytest.param(64, 1.0, 10000.0, 2048, id="head-64"),
    pytest.param(96, 1.0, 10000.0, 4096, id="head-96"),
    pytest.param(80, 0.4, 10000.0, 2048, id="phi-2-partial"),
    pytest.param(128, 0.5, 10000.0, 32768, id="glm-half-gptj-pairs"),
    pytest.param(32, 1.0, 10000.0, 512, id="demo"),
    pytest.param(256, 0.25, 10000.0, 2048, id="gptj-quarter"),
    pytest.param(16, 1.0, 1000.0, 1023, id="odd-length"),
]
SCALES = [1.0, 1.5, 4.0, 32.0]


def theirs(
    rope_type: str, shape: tuple[int, float, float, int], seq_len: int, **parameters: Any
) -> tuple[torch.Tensor, float]:
    head_dim, partial, theta, trained = shape
    config = LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, max_position_embeddings=trained
    )
    config.rope_parameters = {
        "rope_type": rope_type,
        "rope_theta": theta,
        "partial_rotary_factor": partial,
        "original_max_position_embeddings": trained,
        **parameters,
    }
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"), seq_len=seq_len)
    return inv_freq.double(), attention_factor


def assert_ours_equals(
    rope_type: str,
    scale: float,
    shape: tuple[int, float, float, int],
    expected: tuple[torch.Tensor, float],
    *,
    tolerance: float = INV_FREQ_RELATIVE,
    num_rotated_pairs: int | None = None,
    **parameters: Any,
) -> None:
    head_dim, partial, theta, trained = shape
    spec = RotarySpec(
        rotary_dim=int(head_dim * partial),
        rope_theta=theta,
        original_max_position_embeddings=trained,
        num_rotated_pairs=num_rotated_pairs,
    )
    ours = from_parameters(rope_type, parameters).frequencies(spec, scale)
    inv_freq, attention_factor = expected
    torch.testing.assert_close(ours.inv_freq, inv_freq, rtol=tolerance, atol=0)
    assert ours.inv_freq.dtype == torch.float64
    assert ours.attention_factor == pytest.approx(attention_factor, rel=INV_FREQ_RELATIVE)


@pytest.mark.parametrize(("head_dim", "partial", "theta", "trained"), SHAPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"truncate": False}, id="not-truncated"),
        pytest.param({"beta_fast": 16.0, "beta_slow": 2.0}, id="narrow-blend"),
        pytest.param({"mscale": 1.0, "mscale_all_dim": 0.7}, id="deepseek-mscale"),
    ],
)
def test_yarn_equals_transformers_yarn_with_the_scale_as_its_factor(
    head_dim: int, partial: float, theta: float, trained: int, scale: float, parameters: dict[str, Any]
) -> None:
    shape = (head_dim, partial, theta, trained)
    expected = theirs("yarn", shape, trained, factor=scale, **parameters)
    assert_ours_equals("yarn", scale, shape, expected, **parameters)


@pytest.mark.parametrize(("head_dim", "partial", "theta", "trained"), SHAPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.5}, id="deepseek-v2"),
        pytest.param({"factor": 32.0, "truncate": False}, id="gpt-oss"),
        pytest.param({"factor": 64.0, "beta_fast": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}, id="kimi-k2"),
        pytest.param({"factor": 4.0}, id="qwen-by-hand"),
    ],
)
def test_yarn_of_a_checkpoint_is_transformers_with_its_factor_times_the_scale(
    head_dim: int, partial: float, theta: float, trained: int, scale: float, parameters: dict[str, Any]
) -> None:
    shape, before = (head_dim, partial, theta, trained), trained // 3
    scaled = parameters | {"factor": parameters["factor"] * scale}
    expected = theirs("yarn", shape, trained, original_max_position_embeddings=before, **scaled)
    # blends two frequencies, one up to 2,048 times the other
    blended = 2 * INV_FREQ_BLENDED_RELATIVE
    assert_ours_equals("yarn", scale, shape, expected, tolerance=blended, old_context_len=before, **parameters)


@pytest.mark.parametrize("mscales", [{}, {"mscale": 1.0, "mscale_all_dim": 0.5}], ids=["yarn", "deepseek"])
@pytest.mark.parametrize("tuned", [1.0, 1.2079])
def test_a_checkpoints_attention_factor_grows_as_transformers_formula_does(
    mscales: dict[str, float], tuned: float
) -> None:
    shape = (64, 1.0, 150000.0, 131072)
    before = {"original_max_position_embeddings": 4096} | mscales
    spec = RotarySpec(rotary_dim=64, rope_theta=150000.0, original_max_position_embeddings=131072)
    own = from_parameters("yarn", {"factor": 32.0, "old_context_len": 4096, "attention_factor": tuned} | mscales)
    assert own.frequencies(spec, 1.0).attention_factor == tuned
    _, at_scale_1 = theirs("yarn", shape, 131072, factor=32.0, **before)
    _, at_scale_4 = theirs("yarn", shape, 131072, factor=128.0, **before)
    assert at_scale_4 > 1.02 * at_scale_1
    assert own.frequencies(spec, 4.0).attention_factor == pytest.approx(tuned * at_scale_4 / at_scale_1, rel=1e-12)


@pytest.mark.parametrize(("head_dim", "partial", "theta", "trained"), SHAPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("factor", [1.0, 8.0], ids=["plain", "gemma-3"])
def test_linear_equals_transformers_linear_with_the_scale_multiplying_its_factor(
    head_dim: int, partial: float, theta: float, trained: int, scale: float, factor: float
) -> None:
    shape = (head_dim, partial, theta, trained)
    expected = theirs("linear", shape, trained, factor=factor * scale)
    assert_ours_equals("linear", scale, shape, expected, factor=factor)


@pytest.mark.parametrize(("head_dim", "partial", "theta", "trained"), SHAPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_dynamic_equals_transformers_dynamic_at_the_length_of_the_scale(
    head_dim: int, partial: float, theta: float, trained: int, scale: float, factor: float
) -> None:
    shape = (head_dim, partial, theta, trained)
    seq_len = scale * trained  # transformers takes any number here
    expected = theirs("dynamic", shape, seq_len, factor=factor)  # type: ignore[arg-type]
    assert_ours_equals("dynamic", scale, shape, expected, factor=factor)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_alpha_of_a_checkpoint_is_transformers_times_the_stretch_of_the_scale(scale: float, factor: float) -> None:
    stretch = factor * scale - (factor - 1)
    rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 1000.0 * stretch}
    config = HunYuanDenseV1Config(head_dim=128, max_position_embeddings=32768, rope_parameters=rope_parameters)
    module = HunYuanDenseV1RotaryEmbedding(config)
    expected = module.inv_freq.double(), module.attention_scaling
    assert_ours_equals("dynamic", scale, (128, 1.0, 10000.0, 32768), expected, factor=factor, alpha=1000.0)


@pytest.mark.parametrize(("head_dim", "partial", "theta", "trained"), SHAPES)
@pytest.mark.parametrize("scale", SCALES)
def test_ntk_raises_the_base_so_that_the_slowest_pair_is_slowed_by_the_scale(
    head_dim: int, partial: float, theta: float, trained: int, scale: float
) -> None:
    rotary_dim = int(head_dim * partial)
    raised = theta * scale ** (rotary_dim / (rotary_dim - 2))
    expected = torch.tensor([raised ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)], dtype=torch.float64)
    assert_ours_equals("ntk", scale, (head_dim, partial, theta, trained), (expected, 1.0))
    assert math.isclose(float(expected[-1]) * scale, theta ** (-(rotary_dim - 2) / rotary_dim), rel_tol=1e-12)


@pytest.mark.parametrize(("head_dim", "partial", "theta", "trained"), SHAPES)
def test_dynamic_with_factor_1_equals_ntk(head_dim: int, partial: float, theta: float, trained: int) -> None:
    spec = RotarySpec(rotary_dim=int(head_dim * partial), rope_theta=theta, original_max_position_embeddings=trained)
    dynamic = from_parameters("dynamic", {}).frequencies(spec, 4.0)
    ntk = from_parameters("ntk", {}).frequencies(spec, 4.0)
    assert torch.equal(dynamic.inv_freq, ntk.inv_freq)


@pytest.mark.parametrize(("head_dim", "partial", "theta", "trained"), SHAPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("factor", "low_freq_factor", "high_freq_factor"),
    [(8.0, 1.0, 4.0), (32.0, 0.5, 3.0), (16.0, 1.0, 1.0)],
    ids=["3.1", "wide-blend", "4"],
)
def test_llama3_equals_transformers_llama3_with_the_scale_multiplying_its_factor(
    head_dim: int,
    partial: float,
    theta: float,
    trained: int,
    scale: float,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
) -> None:
    shape, before = (head_dim, partial, theta, trained), trained // 3
    blend = {"low_freq_factor": low_freq_factor, "high_freq_factor": high_freq_factor}
    expected = theirs("llama3", shape, trained, factor=factor * scale, original_max_position_embeddings=before, **blend)
    own = {"factor": factor, "old_context_len": before} | blend
    assert_ours_equals("llama3", scale, shape, expected, tolerance=INV_FREQ_BLENDED_RELATIVE, **own)


@pytest.mark.parametrize(("head_dim", "partial", "theta", "trained"), SHAPES)
@pytest.mark.parametrize(
    "parameters",
    [pytest.param({"factor": 32.0}, id="factor"), pytest.param({"attention_factor": 1.5}, id="attention-factor")],
)
@pytest.mark.parametrize(("scale", "seq_len"), [(1.0, 0), (1.5, 1), (32.0, 1)], ids=["short", "little-long", "long"])
def test_longrope_equals_transformers_longrope_on_either_side_of_the_trained_length(
    head_dim: int, partial: float, theta: float, trained: int, parameters: dict[str, float], scale: float, seq_len: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    pairs = int(head_dim * partial) // 2
    short, long = ((1 + spread * torch.rand(pairs, generator=draw)).tolist() for spread in (0.2, 40.0))
    lists = {"short_factor": short, "long_factor": long}
    shape = (head_dim, partial, theta, trained)
    expected = theirs("longrope", shape, trained + seq_len, **lists, **{"factor": 32.0} | parameters)
    assert_ours_equals("longrope", scale, shape, expected, **lists, **parameters)


@pytest.mark.parametrize(("head_dim", "partial", "theta", "trained"), SHAPES)
@pytest.mark.parametrize(("rope_type", "scale"), [("default", 1.0), ("linear", 4.0)])
def test_some_pairs_of_a_whole_head_equal_transformers_proportional(
    head_dim: int, partial: float, theta: float, trained: int, rope_type: str, scale: float
) -> None:
    shape, pairs = (head_dim, partial, theta, trained), int(head_dim * partial) // 2
    expected = theirs("proportional", shape, trained, factor=scale)
    whole = (head_dim, 1.0, theta, trained)
    assert_ours_equals(rope_type, scale, whole, expected, num_rotated_pairs=pairs)
