"""The names of a deployment's settings, by section, and which of them was meant by one that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from posenc_runtime.encodings.scaling import available
from posenc_runtime.vllm_adapter.compat.arguments import argument_names
from posenc_runtime.vllm_adapter.settings.parameters import parameters_model
from posenc_runtime.vllm_adapter.settings.section import AttentionSettings, ScalingSettings

TOP_LEVEL = ""
SECTIONS = ("scaling", "attention", "engine", "server")
# Of server/settings.py, which knows this package and not the other way about; a test compares.
_BESIDE_SECTIONS = ("model", "served_model_name", "max_model_len", "log_requests")

# Engine arguments that follow from a deployment's own settings, and from which.
DERIVED = {
    "model": "model",
    "served_model_name": "served_model_name",
    "max_model_len": "max_model_len",
    "kv_transfer_config": "scaling",
    "scheduler_cls": "scaling.on_crossing and engine.scheduling_policy",
    "worker_extension_cls": "posenc itself, which asks workers about their layers,",
}

# Arguments of vllm serve by which it has other API servers than the one of its own process; refused as such.
OF_SEVERAL_SERVERS = (
    *("api_server_count", "headless"),
    *("data_parallel_multi_port_external_lb", "data_parallel_supervisor_port"),
)

# How alike two names are at least, from 0 to 1, for one to be meant by the other. A slip of the finger in the right
# section is likelier than one in another section, of which vLLM's have hundreds of names.
_ALIKE, _ALIKE_ELSEWHERE = 0.6, 0.8


def known_names(rope_type: str, sections: Collection[str] = SECTIONS) -> dict[str, frozenset[str]]:
    """Names of the settings in each section, and of those outside of them under ``TOP_LEVEL``.

    Args:
        rope_type: the method, whose parameters are in ``scaling``; none are where it is no method's name.
        sections: those that there are.
    """
    parameters = parameters_model(rope_type).model_fields if rope_type in available() else ()
    vllms = argument_names()
    every = {
        "scaling": frozenset({*ScalingSettings.model_fields, *parameters}),
        "attention": frozenset(AttentionSettings.model_fields),
        "engine": vllms["engine"] - DERIVED.keys(),
        "server": vllms["server"],
    }
    return {TOP_LEVEL: frozenset({*_BESIDE_SECTIONS, *sections}), **{name: every[name] for name in sections}}


def meant(section: str, name: str, known: Mapping[str, Iterable[str]]) -> tuple[str, str] | None:
    """Section and name of the setting that is closest to an unknown one, wherever it is; None where none is close.

    Args:
        section: where the unknown one was found.
        known: from ``known_names``.
    """
    alike, found = _closest(name, (each for each in known[section] if each != name))
    best = (section, found) if alike >= _ALIKE else None
    for other, names in known.items():
        likelier, found = _closest(name, names)
        if other != section and likelier >= _ALIKE_ELSEWHERE and (best is None or likelier > alike):
            alike, best = likelier, (other, found)
    return best


def did_you_mean(section: str, name: str, known: Mapping[str, Iterable[str]]) -> str:
    """The end of a refusal of an unknown setting: what was meant, with its section where that is another one.

    Args:
        section: where the unknown one was found.
        known: from ``known_names``.
    """
    if (found := meant(section, name, known)) is None:
        return ""
    return f"; did you mean {found[1] if found[0] == section else as_path(*found)}?"


def no_argument(section: str, name: str, value: Any, rope_type: str) -> str:
    """The refusal of something that is given to vLLM and is no argument of it."""
    hint = did_you_mean(section, name, known_names(rope_type))
    return f"{section}.{name}: is not an argument of vLLM, got {value!r}{hint}"


def unknown_arguments(given: Mapping[str, Mapping[str, Any]], rope_type: str) -> list[str]:
    """The refusals of all that is no argument of vLLM, as far as its sources say it.

    Args:
        given: by section, ``engine`` and ``server``.
    """
    return [
        no_argument(section, name, value, rope_type)
        for section, arguments in given.items()
        for name, value in arguments.items()
        if (known := argument_names()[section]) and name not in known and name not in OF_SEVERAL_SERVERS
    ]


def as_path(section: str, name: str) -> str:
    """A setting as whoever looked for it in another section is told."""
    return f"{section}.{name}" if section else f"{name} at the top level"


def _closest(name: str, names: Iterable[str]) -> tuple[float, str]:
    """How alike the closest of the names is, and which one that is."""
    return max(((difflib.SequenceMatcher(None, each, name).ratio(), each) for each in names), default=(0.0, ""))
