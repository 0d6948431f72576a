"""The deployments that come with Posenc, by name."""

from __future__ import annotations

import pathlib

import pytest
from typer.testing import CliRunner

from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.cli import app
from server.deployment import shipped
from server.deployment.load import load

FOLDER = pathlib.Path(__file__).parents[3] / "configs"


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["configs", *arguments], env={"COLUMNS": "80"})
    return result.exit_code, result.stdout, result.stderr


def test_the_names_are_those_of_the_files_in_the_folder_at_the_top() -> None:
    assert shipped.names() == sorted(path.stem for path in FOLDER.iterdir())
    assert {"demo", "qwen3-yarn"} <= set(shipped.names())


def test_a_name_leads_to_its_file() -> None:
    path = shipped.path_of("qwen3-yarn")
    assert path.samefile(FOLDER / "qwen3-yarn.yaml") and load(path, environment={}).model == "Qwen/Qwen3-8B"


def test_an_unknown_name_is_refused_with_those_that_there_are_and_the_closest() -> None:
    with pytest.raises(SettingRefused) as caught:
        shipped.path_of("qwen-yarn")
    assert str(caught.value) == (
        f"configuration: must be one of {', '.join(shipped.names())}, got 'qwen-yarn'; did you mean qwen3-yarn?"
    )


@pytest.mark.parametrize("name", ["../configs/demo", "demo.yaml", ""])
def test_only_a_name_is_a_name(name: str) -> None:
    with pytest.raises(SettingRefused, match="must be one of"):
        shipped.path_of(name)


def test_a_file_says_what_it_is_and_which_model_it_serves() -> None:
    about = shipped.about("qwen3-yarn")
    assert about.summary.startswith("Qwen3-8B, trained on 32,768 tokens") and about.model == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("name", shipped.names())
def test_every_file_begins_with_what_it_is(name: str) -> None:
    first, _, _ = shipped.path_of(name).read_text(encoding="utf-8").partition("\n")
    assert first.startswith("# ") and first == f"# {shipped.about(name).summary}"


def test_an_installation_without_any_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "_FOLDER", tmp_path)
    with pytest.raises(SettingRefused, match=f"{tmp_path} must have the YAML files that come with Posenc, got none"):
        shipped.path_of("demo")


def test_the_command_lists_each_with_its_model_and_what_it_is() -> None:
    status, out, err = run()
    assert (status, err) == (0, "")
    assert [line.split("  ")[0] for line in out.splitlines()[::2]] == shipped.names()
    assert "qwen3-yarn  Qwen/Qwen3-8B\n    Qwen3-8B, trained on 32,768 tokens, served to 131,072 with YaRN;" in out


def test_the_command_prints_the_path_of_one_as_a_shell_takes_it() -> None:
    assert run("demo") == (0, f"{shipped.path_of('demo')}\n", "")


def test_the_command_refuses_an_unknown_name_with_status_2() -> None:
    status, out, err = run("qwen-yarn")
    assert (status, out) == (2, "") and err.endswith("did you mean qwen3-yarn?\n")
