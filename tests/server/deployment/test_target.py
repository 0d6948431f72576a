"""What the command line names."""

from __future__ import annotations

import pathlib

import pytest

from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.deployment.target import settings_of


def test_nothing_named_is_the_demo() -> None:
    settings = settings_of(None, None)
    assert settings.served_model_name == "demo" and pathlib.Path(settings.model).is_dir()


def test_a_configuration_that_ships_is_found_by_its_name() -> None:
    assert settings_of("qwen3-yarn", None).model == "Qwen/Qwen3-8B"


def test_a_file_is_a_file_whichever_way_it_is_named(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: some/model\nmax_model_len: 77\n")
    for settings in (settings_of(str(file), None), settings_of(None, file)):
        assert (settings.model, settings.max_model_len) == ("some/model", 77)


def test_anything_else_is_a_model_that_says_itself_how_it_is_scaled() -> None:
    settings = settings_of("some/model", None, ["server.port=9000", "scaling.headroom_tokens=7"])
    assert (settings.model, settings.server.port) == ("some/model", 9000)
    assert (settings.scaling.rope_type, settings.scaling.headroom_tokens) == ("auto", 7)


@pytest.mark.parametrize(("misspelt", "meant"), [("smolm2", "smollm2"), ("Demo", "demo"), ("qwen3-yarm", "qwen3-yarn")])
def test_a_name_that_is_close_to_one_that_ships_is_asked_of_no_hub(misspelt: str, meant: str) -> None:
    with pytest.raises(SettingRefused, match=rf"^model: must be a file, .* got '{misspelt}'; did you mean {meant}\?$"):
        settings_of(misspelt, None)


def test_a_folder_and_a_model_of_a_hub_may_have_names_that_are_close(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("smollm", "somebody/smollm", "gpt2"):
        assert settings_of(name, None).model == name


def test_a_gguf_file_is_refused_with_what_to_serve_instead() -> None:
    with pytest.raises(SettingRefused, match=r"^model: .* got 'some/model\.gguf': .* Serve the checkpoint that it was"):
        settings_of("some/model.gguf", None)


def test_two_things_named_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SettingRefused, match=r"^--config: must be left out if the command also names 'demo', got "):
        settings_of("demo", tmp_path / "mine.yaml")


def test_auto_takes_no_parameters_of_a_method() -> None:
    with pytest.raises(
        SettingRefused, match=r"rope_type must name a method where scaling has parameters of a method, got auto"
    ):
        settings_of("some/model", None, ["scaling.beta_fast=16"])
