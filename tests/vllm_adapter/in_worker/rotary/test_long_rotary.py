"""LongRoPE's stacked table: the checkpoint's short factors first, its long ones at every scale above."""

from __future__ import annotations

import dataclasses
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import rotary_embedding

from posenc_runtime.encodings.scaling.longrope import LongRope
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_worker.rotary import building, registration
from posenc_runtime.vllm_adapter.in_worker.rotary import long_embedding as long_rotary
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE
from tests.tolerance import INV_FREQ_RELATIVE, TABLE_ANGLE_RELATIVE

TRAINED, SERVED, LONGEST, HEAD_DIM = 16, 48, 64, 8
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}
ROPE = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": TRAINED} | FACTORS
DEPLOYMENT = Deployment(
    rope_type="longrope",
    parameters=FACTORS | {"factor": LONGEST / TRAINED},
    scales=(1.0, 4.0),
    original_max_position_embeddings=TRAINED,
    max_model_len=SERVED,
)


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The configuration of a checkpoint."""
    folder = tmp_path_factory.mktemp("phi")
    config = Phi3Config(
        architectures=["Phi3ForCausalLM"],
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        max_position_embeddings=LONGEST,
        original_max_position_embeddings=TRAINED,
        rope_parameters=dict(ROPE),
    )
    config.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def a_process_of_its_own(phi: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: DEPLOYMENT)
    monkeypatch.setattr(STATE, "rotaries", [])
    monkeypatch.setattr(rotary_embedding, "_ROPE_DICT", {})
    engine: Any = VllmConfig()
    engine.model_config = types.SimpleNamespace(
        model=str(phi),
        uses_mrope=False,
        hf_config_path=None,
        _hf_config_revision=None,
        trust_remote_code=False,
        revision=None,
        code_revision=None,
        config_format="auto",
        hf_token=None,
        hf_overrides={"max_position_embeddings": SERVED},
        _apply_dict_overrides=lambda config, overrides: None,
        max_model_len=SERVED,
    )
    with set_current_vllm_config(engine):
        yield


def made() -> Any:
    """As a model is given it."""
    return rotary_embedding.get_rope(
        HEAD_DIM, SERVED, is_neox_style=True, rope_parameters=dict(ROPE), dtype=torch.float32
    )


@pytest.mark.parametrize(("first_row", "length"), [(0, TRAINED), (TRAINED, SERVED)], ids=["short", "long"])
def test_each_part_rotates_as_transformers_does_for_a_sequence_of_that_length(
    first_row: int, length: int, phi: pathlib.Path
) -> None:
    config = Phi3Config.from_pretrained(phi)
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * inv_freq.double()
    expected = torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_factor

    module = made()
    assert type(module) is long_rotary.PosencLongRotaryEmbedding
    assert module.long_short_cos_sin_cache.shape == (TRAINED + SERVED, HEAD_DIM)
    table = module.long_short_cos_sin_cache[first_row : first_row + length]
    angle_error = SERVED * (INV_FREQ_RELATIVE + TABLE_ANGLE_RELATIVE)
    torch.testing.assert_close(table.double(), expected, rtol=0, atol=attention_factor * angle_error)


def test_a_short_request_is_rotated_by_the_first_rows() -> None:
    module, positions = made(), torch.tensor([0, 3, 15])
    rotated, _ = module(positions, torch.ones(3, HEAD_DIM), torch.ones(3, HEAD_DIM))
    cos, sin = module.long_short_cos_sin_cache[positions].chunk(2, dim=-1)
    assert torch.equal(rotated, torch.cat((cos - sin, cos + sin), dim=-1))


@pytest.mark.parametrize(
    ("parameters", "trained"),
    [
        pytest.param({"factor": 2.0}, TRAINED, id="another-longest-length"),
        pytest.param({"factor": LONGEST / TRAINED}, TRAINED // 2, id="a-shorter-trained-length"),
        pytest.param({"attention_factor": 1.5}, TRAINED, id="another-attention-factor"),
        pytest.param({"factor": LONGEST / TRAINED, "short_mscale": 1.0}, TRAINED, id="another-for-short-requests"),
    ],
)
def test_parameters_that_would_change_scale_1_are_refused(
    parameters: dict[str, float], trained: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = dataclasses.replace(
        DEPLOYMENT, parameters=FACTORS | parameters, original_max_position_embeddings=trained, scales=(1.0, 8.0)
    )
    monkeypatch.setattr(building, "checked_deployment", lambda: deployment)
    with pytest.raises(
        ValueError, match="scale 1 must rotate exactly as the checkpoint does, got parameters that change"
    ):
        made()


def test_short_factors_are_not_taken_further_than_the_checkpoint_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = dataclasses.replace(DEPLOYMENT, original_max_position_embeddings=2 * TRAINED, scales=(1.0, 2.0))
    monkeypatch.setattr(building, "checked_deployment", lambda: deployment)
    with pytest.raises(ValueError, match="must not exceed the checkpoint's trained length 16, got 32"):
        made()


def test_a_shorter_trained_length_leaves_scale_1_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    short = made().long_short_cos_sin_cache[: TRAINED // 2]
    _, parameters, _ = LongRope.of_checkpoint(ROPE, LONGEST)
    deployment = dataclasses.replace(
        DEPLOYMENT, parameters=parameters, original_max_position_embeddings=TRAINED // 2, scales=(1.0, 8.0)
    )
    monkeypatch.setattr(building, "checked_deployment", lambda: deployment)
    monkeypatch.setattr(rotary_embedding, "_ROPE_DICT", {})
    assert torch.equal(made().long_short_cos_sin_cache[: TRAINED // 2], short)


def test_where_attention_rotates_queries_and_keys_pass_and_no_table_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "is_fused", lambda _: True)
    module = made()
    query, key = torch.randn(3, 2 * HEAD_DIM), torch.randn(3, HEAD_DIM)
    given = query.clone(), key.clone()
    passed = module(torch.arange(3), query, key)
    assert passed[0] is query and passed[1] is key
    assert torch.equal(query, given[0]) and torch.equal(key, given[1])
    assert module.long_short_cos_sin_cache.shape == (0, HEAD_DIM)
    assert [made.is_fused for made in STATE.rotaries] == [True]
