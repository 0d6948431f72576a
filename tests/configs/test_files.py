"""Every file under ``configs/`` is a deployment that can be served."""

from __future__ import annotations

import pathlib

import pytest

from posenc_runtime.kv.admission import admit
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.settings import plan
from server.deployment.load import load
from server.start_up.planning import plan_settings

FOLDER = pathlib.Path(__file__).parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))
# file: (trained length, served length, method)
PROMISED = {
    "demo.yaml": (512, 4096, "yarn"),
    "smollm2.yaml": (8192, 32768, "yarn"),
    "qwen3-yarn.yaml": (32768, 131072, "yarn"),
    "llama3-dynamic.yaml": (8192, 32768, "dynamic"),
    "llama31-llama3.yaml": (131072, 262144, "llama3"),
    "mistral-linear.yaml": (32768, 65536, "linear"),
    "phi4-longrope.yaml": (4096, 131072, "longrope"),
    "qwen35-yarn.yaml": (262144, 1010000, "yarn"),
    "qwen3-vl-yarn.yaml": (262144, 524288, "yarn"),
    "gpt-oss-yarn.yaml": (131072, 262144, "yarn"),
    "gemma3-linear.yaml": (131072, 262144, "linear"),
    "deepseek-v31-yarn.yaml": (163840, 327680, "yarn"),
}
# file: served length, of checkpoints without rotary embeddings
UNROTATED = {"bloom-alibi.yaml": 8192, "counting-cope.yaml": 640}


def test_every_file_is_promised_and_every_promise_has_a_file() -> None:
    assert {path.name for path in FILES} == {*PROMISED, *UNROTATED}


@pytest.mark.parametrize("path", [FOLDER / name for name in PROMISED], ids=lambda path: path.stem)
def test_a_file_gives_the_deployment_that_it_promises(path: pathlib.Path) -> None:
    deployment = plan_settings(load(path, environment={}), is_read=False).deployment
    trained, served, rope_type = PROMISED[path.name]
    assert (deployment.original_max_position_embeddings, deployment.max_model_len) == (trained, served)
    assert deployment.rope_type == rope_type
    assert admit(deployment, num_prompt_tokens=trained - 1, max_tokens=1).scale_index == 0
    assert admit(deployment, num_prompt_tokens=served - 1, max_tokens=1).scale_index == len(deployment.scales) - 1


@pytest.mark.parametrize("path", [FOLDER / name for name in UNROTATED], ids=lambda path: path.stem)
def test_a_file_without_scaling_gives_its_length_to_every_request(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(max_position_embeddings=2048, spec=None, architecture="Theirs", attention="bias")
    monkeypatch.setattr(plan, "read_checkpoint", lambda *_: checkpoint)
    deployment = plan_settings(load(path, environment={})).deployment
    assert not deployment.rotates and deployment.max_model_len == UNROTATED[path.name]


@pytest.mark.parametrize("name", ["demo.yaml", "counting-cope.yaml"])
def test_the_models_of_our_own_are_in_the_repository(name: str) -> None:
    model = pathlib.Path(load(FOLDER / name, environment={}).model)
    assert (model / "config.json").exists() and (model / "model.safetensors").exists()
