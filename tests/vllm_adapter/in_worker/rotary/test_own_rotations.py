"""Scale 1 of every method that reads a checkpoint, against the class of vLLM that rotates the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor import custom_op
from vllm.model_executor.layers import rotary_embedding

from posenc_runtime.encodings.scaling import from_parameters, own
from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.encodings.table import cos_sin_cache
from tests.tolerance import INV_FREQ_RELATIVE, TABLE_ANGLE_RELATIVE

HEAD_DIM, THETA, BEFORE, LONGEST = 64, 10000.0, 512, 2048
ROWS = 512

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": BEFORE}
BLEND = {"beta_fast": 16, "beta_slow": 2}


@pytest.fixture(autouse=True)
def stock_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without classes of ours, whatever tests before have registered."""
    monkeypatch.setattr(custom_op, "op_registry_oot", {})
    monkeypatch.setattr(rotary_embedding, "_ROPE_DICT", {})
    with set_current_vllm_config(VllmConfig()):
        yield


def vllms_table(said: dict[str, Any], longest: int) -> torch.Tensor:
    """vLLM's cosines and sines, ``[ROWS, HEAD_DIM]``."""
    rotary = rotary_embedding.get_rope(
        HEAD_DIM, longest, rope_parameters={"rope_theta": THETA} | said, dtype=torch.float32
    )
    assert type(rotary).__module__.startswith("vllm.")
    return rotary.cos_sin_cache[:ROWS]


def assert_equals_vllm(said: dict[str, Any], rope_type: str, longest: int = LONGEST, pairs: int | None = None) -> None:
    trained, parameters, _ = own(rope_type).of_checkpoint(said, longest)
    spec = RotarySpec(
        rotary_dim=HEAD_DIM, rope_theta=THETA, original_max_position_embeddings=trained, num_rotated_pairs=pairs
    )
    ours = from_parameters(rope_type, parameters).frequencies(spec, 1.0)
    angle_error = ROWS * (INV_FREQ_RELATIVE + TABLE_ANGLE_RELATIVE)
    torch.testing.assert_close(
        cos_sin_cache(ours, ROWS), vllms_table(said, longest), rtol=0, atol=ours.attention_factor * angle_error
    )


@pytest.mark.parametrize("rope_type", ["yarn", "deepseek_yarn", "deepseek_llama_scaling"])
@pytest.mark.parametrize(
    "said",
    [
        pytest.param({}, id="defaults"),
        pytest.param(BLEND, id="blend"),
        pytest.param({"beta_fast": 1.0, "beta_slow": 1.0}, id="kimi-k2"),
        pytest.param({"mscale": 0.707, "mscale_all_dim": 0.5}, id="two-mscales"),
        pytest.param({"mscale": 0.707}, id="mscale-alone"),
        pytest.param({"mscale_all_dim": 1.0}, id="mscale-all-dim-alone"),
        pytest.param({"mscale": 0.0, "mscale_all_dim": 0.0}, id="no-mscale"),
        pytest.param({"attention_factor": 1.3, "mscale": 0.707, "mscale_all_dim": 0.5}, id="attention-factor"),
        pytest.param({"truncate": False}, id="not-truncated"),
    ],
)
def test_yarn(said: dict[str, Any], rope_type: str) -> None:
    assert_equals_vllm(YARN | said | {"rope_type": rope_type}, "yarn")


@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_linear(factor: float) -> None:
    assert_equals_vllm({"rope_type": "linear", "factor": factor}, "linear")


@pytest.mark.parametrize("said", [{"factor": 2.0}, {"factor": 1.0, "alpha": 1000.0}, {"alpha": 50.0}])
def test_dynamic(said: dict[str, Any]) -> None:
    assert_equals_vllm({"rope_type": "dynamic"} | said, "dynamic")


# The first pair turns 512 / 2 pi times, neither more often nor less than it says there.
@pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (1.0, 1.0), (4.0, 4.0), (BEFORE / math.tau, BEFORE / math.tau)])
def test_llama3(low: float, high: float) -> None:
    said = {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": low, "high_freq_factor": high}
    assert_equals_vllm(said | {"original_max_position_embeddings": BEFORE}, "llama3")


@pytest.mark.parametrize("partial", [0.25, 0.5, 1.0])
def test_proportional_is_plain_rope_of_the_first_pairs(partial: float) -> None:
    said = {"rope_type": "proportional", "partial_rotary_factor": partial}
    assert_equals_vllm(said, "default", pairs=int(HEAD_DIM * partial) // 2)
