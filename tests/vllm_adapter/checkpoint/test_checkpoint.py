"""What a checkpoint says by itself, also where an engine has put the served length in its place."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from vllm.config import ModelConfig
from vllm.transformers_utils import config as vllm_config

from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_again, read_checkpoint
from tests.checkpoints import TRAINED, save_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def slower(config: Any) -> Any:
    if rope_parameters := getattr(config, "rope_parameters", None):  # vLLM asks first what it makes of an empty one
        config.rope_parameters = rope_parameters | {"rope_theta": 5e5}
    return config


@pytest.mark.parametrize(
    ("overrides", "rope_theta"),
    [
        pytest.param({}, 1e4, id="none"),
        pytest.param({"max_position_embeddings": 64}, 1e4, id="the-served-length"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, id="a-mapping"),
        pytest.param(slower, 5e5, id="a-function"),
    ],
)
def test_the_trained_length_is_the_checkpoints_and_all_else_as_the_engine_has_it(
    overrides: dict[str, Any] | Callable[[Any], Any], rope_theta: float, tiny: pathlib.Path
) -> None:
    model_config = ModelConfig(model=str(tiny), hf_overrides=overrides, dtype="float32", max_model_len=64)
    checkpoint = read_again(model_config)
    assert checkpoint.max_position_embeddings == TRAINED
    assert checkpoint.spec is not None and checkpoint.spec.rope_theta == rope_theta


def test_a_configuration_from_elsewhere_is_read_at_its_own_revision(
    tiny: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_config = ModelConfig(model=str(tiny), hf_config_path=str(tiny), dtype="float32", revision="of-the-weights")
    model_config._hf_config_revision = "of-the-configuration"
    stock, asked = vllm_config.get_config, []
    monkeypatch.setattr(
        vllm_config,
        "get_config",
        lambda model, trust, *revision_and_others, **named: (
            asked.append(revision_and_others[0]) or stock(model, trust, *revision_and_others, **named)
        ),
    )
    read_again(model_config)
    assert asked == ["of-the-configuration"]


def test_a_configuration_is_read_with_the_token_that_vllm_is_given(
    tiny: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, asked = vllm_config.get_config, []

    def fetched(model: str, name: str, **named: Any) -> str:
        asked.append((model, named["token"]))
        return str(tiny / name)

    def metadata(url: str, **named: Any) -> None:
        asked.append(("metadata", named["token"]))

    def get_config(model: str, **named: Any) -> Any:
        asked.append((model, named["token"]))
        return stock(model, **named)

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", metadata)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetched)
    monkeypatch.setattr(vllm_config, "get_config", get_config)
    read_checkpoint("somebody/gated", {"hf_token": "secret"})
    assert asked == [("metadata", "secret"), ("somebody/gated", "secret"), (str(tiny), "secret")]


def test_a_configuration_is_read_in_the_format_that_vllm_is_told(
    tiny: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, asked = vllm_config.get_config, []

    def get_config(model: str, config_format: str, **named: Any) -> Any:
        asked.append((model, config_format))
        return stock(tiny, config_format="hf", **named)

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url, **named: None)
    monkeypatch.setattr(vllm_config, "get_config", get_config)
    read_checkpoint("somebody/published", {"config_format": "mistral"})
    assert asked == [("somebody/published", "mistral")]
