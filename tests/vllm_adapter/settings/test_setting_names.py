"""Which setting was meant by one that there is not."""

from __future__ import annotations

import pytest

from posenc_runtime.vllm_adapter.settings import setting_names
from posenc_runtime.vllm_adapter.settings.arguments.parser import parser as vllms_parser
from posenc_runtime.vllm_adapter.settings.setting_names import (
    OF_SEVERAL_SERVERS,
    TOP_LEVEL,
    did_you_mean,
    known_names,
    unknown_arguments,
)


@pytest.mark.parametrize(
    ("section", "name", "meant"),
    [
        ("engine", "max_num_seq", "max_num_seqs"),
        ("server", "apikey", "api_key"),
        ("engine", "api_key", "server.api_key"),
        ("engine", "port", "server.port"),
        ("server", "max_num_seqs", "engine.max_num_seqs"),
        ("server", "max_num_seq", "engine.max_num_seqs"),
        ("server", "reasoning_parser", "engine.reasoning_parser"),
        ("server", "model", "model at the top level"),
        ("engine", "max_model_ln", "max_model_len at the top level"),
        ("engine", "log_requests", "log_requests at the top level"),
        ("engine", "scaling", "scaling at the top level"),
        ("engine", "headroom_tokens", "scaling.headroom_tokens"),
        ("engine", "beta_fast", "scaling.beta_fast"),
        ("scaling", "dtype", "engine.dtype"),
        ("scaling", "window_tolerance", "attention.window_tolerance"),
        (TOP_LEVEL, "modell", "model"),
        (TOP_LEVEL, "tensor_parallel_size", "engine.tensor_parallel_size"),
        (TOP_LEVEL, "headroom_tokens", "scaling.headroom_tokens"),
        (TOP_LEVEL, "scales", "scaling.scales"),
        (TOP_LEVEL, "api_key", "server.api_key"),
    ],
)
def test_it_is_looked_for_in_every_section_and_named_with_another_one(section: str, name: str, meant: str) -> None:
    assert did_you_mean(section, name, known_names("yarn")) == f"; did you mean {meant}?"


@pytest.mark.parametrize(("section", "name"), [(TOP_LEVEL, "zzz"), ("engine", "tp"), ("scaling", "zoom")])
def test_nothing_is_guessed_where_nothing_is_close(section: str, name: str) -> None:
    assert did_you_mean(section, name, known_names("yarn")) == ""


def test_a_parameter_belongs_to_the_method_that_has_it() -> None:
    assert did_you_mean("engine", "beta_fast", known_names("linear")) == ""
    assert did_you_mean("engine", "beta_fast", known_names("no method")) == ""


@pytest.mark.parametrize("name", ["max_model_len", "scheduler_cls"])
def test_what_follows_from_other_settings_is_no_engine_argument_to_be_meant(name: str) -> None:
    assert name not in known_names("yarn")["engine"]


def test_of_sections_that_are_not_there_nothing_is_meant() -> None:
    assert did_you_mean("scaling", "dtype", known_names("yarn", ("scaling", "attention"))) == ""


def test_what_vllms_parser_takes_is_never_refused_before_it_is_asked() -> None:
    every: dict[str, dict[str, object]] = {
        section: dict.fromkeys(actions) for section, actions in vllms_parser()[1].items()
    }
    several = dict.fromkeys(OF_SEVERAL_SERVERS)  # for which vLLM has no such field, and we have a refusal of our own
    assert unknown_arguments({"engine": every["engine"] | several, "server": every["server"] | several}, "yarn") == []


def test_where_vllms_sources_are_not_found_its_parser_alone_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_names, "argument_names", lambda: {"engine": frozenset(), "server": frozenset()})
    assert unknown_arguments({"engine": {"max_num_seq": 3}, "server": {"apikey": "x"}}, "yarn") == []
