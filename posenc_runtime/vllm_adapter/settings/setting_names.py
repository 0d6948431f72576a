"""The names of a deployment's settings, by section, and which of them an unknown name probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from posenc_runtime.encodings.methods import available
from posenc_runtime.vllm_adapter.releases.arguments import argument_names
from posenc_runtime.vllm_adapter.settings.front_end import AccessSettings, HealthSettings, LimitSettings
from posenc_runtime.vllm_adapter.settings.section import AttentionSettings, ScalingSettings, parameters_model

TOP_LEVEL = ""
SECTIONS = ("scaling", "attention", "access", "limits", "health", "engine", "server")
# Settings outside of the sections. server/deployment/settings.py defines them; a test compares both.
_BESIDE_SECTIONS = ("model", "served_model_name", "max_model_len", "log_format", "log_requests")

# Engine arguments that follow from a deployment's settings, each with the settings that it follows from.
DERIVED = {
    "model": "model",
    "served_model_name": "served_model_name",
    "max_model_len": "max_model_len",
    "scheduler_cls": "scaling.on_crossing and engine.scheduling_policy",
    "worker_extension_cls": "scaling",
}


# Arguments by which vllm serve has API servers other than the one in its own process; posenc serve refuses them.
OF_SEVERAL_SERVERS = (
    *("api_server_count", "headless"),
    *("data_parallel_multi_port_external_lb", "data_parallel_supervisor_port"),
)

# The similarity of two names, from 0 to 1, from which one is suggested for the other. The bar is higher for names of
# other sections: vLLM's have hundreds of names, and a typo in the right section is likelier.
_ALIKE, _ALIKE_ELSEWHERE = 0.6, 0.8


def known_names(rope_type: str, sections: Collection[str] = SECTIONS) -> dict[str, frozenset[str]]:
    """Names of the settings in each section, and of those outside of them under ``TOP_LEVEL``.

    Args:
        rope_type: the method, whose parameters are settings of ``scaling``; a name of no method adds none.
        sections: names of the sections to include.
    """
    parameters = parameters_model(rope_type).model_fields if rope_type in available() else ()
    vllms = argument_names()
    every = {
        "scaling": frozenset({*ScalingSettings.model_fields, *parameters}),
        "attention": frozenset(AttentionSettings.model_fields),
        "access": frozenset(AccessSettings.model_fields),
        "limits": frozenset(LimitSettings.model_fields),
        "health": frozenset(HealthSettings.model_fields),
        "engine": vllms["engine"] - DERIVED.keys(),
        "server": vllms["server"],
    }
    return {TOP_LEVEL: frozenset({*_BESIDE_SECTIONS, *sections}), **{name: every[name] for name in sections}}


def meant(section: str, name: str, known: Mapping[str, Iterable[str]]) -> tuple[str, str] | None:
    """Section and name of the known setting closest to an unknown one, in any section; None where none is close.

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
    """The end of an error about an unknown setting: what was probably meant, with its section if that is another.

    Args:
        section: where the unknown one was found.
        known: from ``known_names``.
    """
    if (found := meant(section, name, known)) is None:
        return ""
    return f"; did you mean {found[1] if found[0] == section else as_path(*found)}?"


def no_argument(section: str, name: str, value: Any, rope_type: str) -> str:
    """The error about a setting that is meant for vLLM but is not an argument of vLLM."""
    hint = did_you_mean(section, name, known_names(rope_type))
    return f"{section}.{name}: is not an argument of vLLM, got {value!r}{hint}"


def unknown_arguments(given: Mapping[str, Mapping[str, Any]], rope_type: str) -> list[str]:
    """One error for each name that is not an argument of vLLM, as far as vLLM's sources tell.

    Args:
        given: what was set, by section, ``engine`` and ``server``.
    """
    return [
        no_argument(section, name, value, rope_type)
        for section, arguments in given.items()
        for name, value in arguments.items()
        if (known := argument_names()[section]) and name not in known and name not in OF_SEVERAL_SERVERS
    ]


def as_path(section: str, name: str) -> str:
    """A setting with its section, for a user who looked for it in another section."""
    return f"{section}.{name}" if section else f"{name} at the top level"


def _closest(name: str, names: Iterable[str]) -> tuple[float, str]:
    """The similarity, from 0 to 1, of the name that is most like ``name``, and that name."""
    return max(((difflib.SequenceMatcher(None, each, name).ratio(), each) for each in names), default=(0.0, ""))
