"""Deployments of models without rotary embeddings: nothing to scale, and attention of their own."""

from __future__ import annotations

import json
import pathlib
import shlex
from typing import Any

import pytest
import yaml
from transformers import BloomConfig, GPT2Config, PreTrainedConfig
from typer.testing import CliRunner

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.settings.plan import plan_of
from server.cli import app

BLOOM = BloomConfig(hidden_size=48, n_layer=2, n_head=3, seq_length=256)
GPT2 = GPT2Config(n_embd=48, n_layer=2, n_head=3, n_positions=256)


def decoder(encoding: str) -> PosencConfig:
    return PosencConfig(
        position_encoding_type=encoding, hidden_size=64, num_hidden_layers=2, max_position_embeddings=256
    )


COPE = decoder("cope")


def run(folder: pathlib.Path, config: PreTrainedConfig, command: str, **settings: Any) -> tuple[int, str, str]:
    config.architectures = [{"bloom": "BloomForCausalLM", "gpt2": "GPT2LMHeadModel"}.get(config.model_type, "Posenc")]
    config.save_pretrained(folder / "model")
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump({"model": str(folder / "model"), **settings}))
    result = CliRunner().invoke(app, [command, str(file)], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


def test_check_says_what_attends_and_how_long_requests_may_be(tmp_path: pathlib.Path) -> None:
    status, out, _ = run(tmp_path, BLOOM, "check", max_model_len=4096)
    assert status == 0
    assert "no rotary embeddings, so nothing is scaled; serves 4096 tokens" in out
    assert "distant keys that together have less than 0.001 of the attention weights are not read" in out
    assert "Scales" not in out and "4097" in out


@pytest.mark.parametrize(
    ("config", "attention", "said"),
    [
        pytest.param(BLOOM, {"window_tolerance": 0}, "attention: bias; all keys are read", id="no window"),
        pytest.param(BLOOM, {"backend": "stock"}, "attention: vLLM's own", id="stock"),
        pytest.param(COPE, {}, "attention: cope", id="contextual positions"),
        pytest.param(GPT2, {}, "attention: vLLM's own", id="learned positions"),
    ],
)
def test_check_follows_the_checkpoint_and_the_settings(
    config: PreTrainedConfig, attention: dict[str, Any], said: str, tmp_path: pathlib.Path
) -> None:
    status, out, _ = run(tmp_path, config, "check", attention=attention)
    assert status == 0 and said in out


def test_the_trained_length_is_served_where_no_other_is_asked_for(tmp_path: pathlib.Path) -> None:
    assert "serves 256 tokens" in run(tmp_path, BLOOM, "check")[1]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        pytest.param(GPT2, "GPT2LMHeadModel", id="learned by a model of vLLM"),
        pytest.param(decoder("learned"), "Posenc", id="learned by our decoder"),
        pytest.param(decoder("sinusoidal"), "Posenc", id="sinusoids"),
    ],
)
def test_lengths_past_a_models_last_position_are_refused(
    config: PreTrainedConfig, name: str, tmp_path: pathlib.Path
) -> None:
    status, _, error = run(tmp_path, config, "check", max_model_len=257)
    assert status == 2
    assert f"max_model_len: must be at most 256 for this {name}, got 257" in error


@pytest.mark.parametrize("scaling", [{"rope_type": "yarn"}, {"scales": [1, 2]}, {"on_crossing": "pin"}])
def test_scaling_is_refused_where_nothing_is_rotated(scaling: dict[str, Any], tmp_path: pathlib.Path) -> None:
    status, _, error = run(tmp_path, BLOOM, "check", scaling=scaling)
    assert status == 2
    assert (
        f"scaling.{next(iter(scaling))}: must not be given, because BloomForCausalLM has no rotary embeddings" in error
    )


def test_plain_vllm_gets_the_same_deployment(tmp_path: pathlib.Path) -> None:
    status, out, _ = run(tmp_path, BLOOM, "flags", max_model_len=1024, attention={"window_tolerance": 0.01})
    words = shlex.split(out)
    carried = json.loads(words[words.index("--additional-config") + 1])
    assert status == 0
    assert (carried["posenc"], carried["posenc_attention"]) == ({}, {"window_tolerance": 0.01})
    folder = words[words.index("--model") + 1] if "--model" in words else words[2]
    plan = plan_of({"model": folder, "max_model_len": 1024, "additional_config": carried})
    assert not plan.deployment.rotates
    assert plan.attention == AttentionChoice(window_tolerance=0.01, needs="bias")
