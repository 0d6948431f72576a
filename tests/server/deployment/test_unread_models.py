"""Models whose configuration cannot be read, or from the cache alone, and what each command makes of it."""

from __future__ import annotations

import os
import pathlib
import shutil

import huggingface_hub
import pytest
import yaml
from typer.testing import CliRunner

from server.cli import app
from tests.local_hub import COMMIT, address_of_nobody
from tests.server.command import SCALING, run


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that refuses as Hugging Face's does where a token is missing."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("401 Client Error. (Request ID: 1)\n\nCannot access gated repo for url https://hub.")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", refuse)


UNREAD = (
    "model: the configuration of 'some/model' cannot be read: 401 Client Error. (Request ID: 1) Cannot access gated "
    "repo for url https://hub.; check the name, HF_TOKEN or engine.hf_token, and the network, or set "
    "engine.hf_config_path to a folder that has the configuration"
)


@pytest.mark.usefixtures("unreachable")
def test_check_says_that_it_needs_no_checkpoint_when_the_trained_length_is_given(tmp_path: pathlib.Path) -> None:
    settings = {"model": "some/model", "scaling": SCALING | {"original_max_position_embeddings": 256}}
    status, out, err = run(tmp_path, settings, "check")
    assert status == 0
    assert "its memory is unknown, because the model's configuration cannot be read" in out
    assert err == f"not read {UNREAD}; the output below follows from the settings alone\n"


def test_a_cached_model_needs_no_reachable_hub_and_no_hub_is_asked_again(
    model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--some--model" / "snapshots" / COMMIT
    shutil.copytree(model, snapshot)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text(COMMIT)
    template = address_of_nobody() + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("posenc_runtime.vllm_adapter.checkpoint.hub._SECONDS", 1)
    status, out, err = run(tmp_path, {"model": "some/model", "scaling": SCALING}, "check")
    assert status == 0 and "trained on 256 tokens, serves 1024; yarn at scales 1, 2, 4" in out
    assert err.startswith("from the cache model: the hub https://") and "is out of reach: " in err
    assert err.endswith("; files that are not in the cache are not downloaded\n")
    assert huggingface_hub.constants.HF_HUB_OFFLINE and os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("settings", [{"scaling": SCALING}, {"max_model_len": 8192}], ids=["scaled", "no-scaling"])
@pytest.mark.parametrize("command", ["check", "flags"])
def test_without_a_trained_length_the_error_names_the_model_that_no_hub_gives(
    command: str, settings: dict[str, object], tmp_path: pathlib.Path
) -> None:
    assert run(tmp_path, {"model": "some/model"} | settings, command) == (2, "", f"refused {UNREAD}\n")


@pytest.mark.usefixtures("unreachable")
def test_serving_needs_the_checkpoint_even_where_the_settings_say_it_all(tmp_path: pathlib.Path) -> None:
    settings = {"model": "some/model", "scaling": SCALING | {"original_max_position_embeddings": 256}}
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings))
    result = CliRunner().invoke(app, ["serve", "--config", str(file)], env={"COLUMNS": "200"})
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"refused {UNREAD}\n")


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("/nope/qwen3", "there is no such folder"),
        ("./nope", "there is no such folder"),
        ("~/qwen3", "write the whole path, because ~ is not expanded"),
    ],
)
@pytest.mark.parametrize("command", ["check", "flags"])
def test_a_path_that_is_no_folder_is_refused_whatever_else_is_given(
    command: str, named: str, reason: str, tmp_path: pathlib.Path
) -> None:
    settings = {"model": named, "scaling": SCALING | {"original_max_position_embeddings": 256}}
    status, out, err = run(tmp_path, settings, command)
    path = str(tmp_path / "nope") if named == "./nope" else named
    assert (status, out) == (2, "")
    assert err == f"refused model: must be a folder or a name on a hub, got {path!r}: {reason}\n"


def test_a_folder_without_a_configuration_is_refused_whatever_else_is_given(tmp_path: pathlib.Path) -> None:
    settings = {"model": str(tmp_path), "scaling": SCALING | {"original_max_position_embeddings": 256}}
    status, out, err = run(tmp_path, settings, "check")
    assert (status, out) == (2, "")
    assert f"refused model: the configuration of '{tmp_path}' cannot be read: " in err and "HF_TOKEN" not in err
