"""What ``hf_overrides`` change inside the configuration of a multimodal model's text is read, or refused."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint, read_checkpoint
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused
from tests.model_configs import GEMMA_3_27B, QWEN_3_5

YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e7, "original_max_position_embeddings": 262144}


def read(configuration: dict[str, Any], folder: pathlib.Path, overrides: dict[str, Any]) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(configuration))
    return read_checkpoint(str(folder), {"hf_overrides": overrides})


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ({"text_config": {"rope_parameters": YARN}}, "text_config.rope_parameters"),
        ({"text_config": {"rope_scaling": YARN}}, "text_config.rope_scaling"),
        ({"thinker_config": {"text_config": {"rope_theta": 5.0}}}, "thinker_config.text_config.rope_theta"),
    ],
)
def test_a_rotation_inside_a_configuration_is_refused_like_one_at_its_top(overrides: dict[str, Any], path: str) -> None:
    deployment = Deployment(
        rope_type="yarn", scales=(1.0, 2.0), original_max_position_embeddings=256, max_model_len=512
    )
    rule = (
        rf"^engine\.hf_overrides\.{path}: must be left out, got .*: the section scaling sets how positions are rotated"
    )
    with pytest.raises(ArgumentRefused, match=rule):
        engine_arguments(deployment, {"hf_overrides": overrides})


def test_a_refused_rotation_does_not_change_what_is_read_before_it_is_refused(tmp_path: pathlib.Path) -> None:
    overridden = read(QWEN_3_5, tmp_path, {"text_config": {"rope_parameters": YARN}})
    assert overridden == read(QWEN_3_5, tmp_path, {})


def test_windows_and_kinds_of_layers_inside_a_configuration_are_read(
    tmp_path: pathlib.Path,
) -> None:
    window, layers = {"sliding_window": 2048}, {"layer_types": ["sliding_attention"] * 62}
    assert read(GEMMA_3_27B, tmp_path, {"text_config": window}).sliding_window == 2048
    found = read(GEMMA_3_27B, tmp_path, {"text_config": layers})
    assert found.text_config.layer_types == layers["layer_types"]
    assert read(GEMMA_3_27B, tmp_path, {}).sliding_window == 1024
