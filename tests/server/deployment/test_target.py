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


def test_two_things_named_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SettingRefused, match=r"^--config: must be left out if the command also names 'demo', got "):
        settings_of("demo", tmp_path / "mine.yaml")


def test_auto_takes_no_parameters_of_a_method() -> None:
    with pytest.raises(
        SettingRefused, match=r"rope_type must name a method where scaling has parameters of a method, got auto"
    ):
        settings_of("some/model", None, ["scaling.beta_fast=16"])
