"""Reads flags of ``vllm serve`` as settings, so that a command that somebody has for vLLM is one for Posenc."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posenc_runtime.vllm_adapter.contract.errors import did_you_mean
from posenc_runtime.vllm_adapter.settings.arguments import table
from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused, Flag, opposite
from posenc_runtime.vllm_adapter.settings.setting_names import OF_SEVERAL_SERVERS
from server.deployment.setting_layers import read_value

# Settings of ours outside of the sections that vLLM has as arguments of the engine.
_AT_TOP_LEVEL = ("max_model_len", "served_model_name")
_SUFFIXED = re.compile(r"(\d+)(\.\d+)?([kmgtKMGT])")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_FITS_MEMORY = ("auto", -1)  # of max_model_len


class FlagRefused(ArgumentRefused):
    """A flag is unknown, or lacks its value."""


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a flag's value goes.

    Attributes:
        section: ``engine`` or ``server``.
        keys: of the value within the argument, for flags such as ``--compilation-config.mode``.
        adds: whether the value is one more item of a list there: ``--compilation-config.custom_ops+``.
    """

    section: str
    flag: Flag
    keys: tuple[str, ...] = ()
    adds: bool = False


def split(words: Sequence[str], ours: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Take vLLM's flags out of a command line.

    Args:
        words: of the command line, after the command.
        ours: our own options, which win, and whether each has a value.

    Returns:
        The words that are not vLLM's, and settings as ``--set`` takes them.

    Raises:
        FlagRefused: when a flag is neither ours nor vLLM's, with one that was probably meant, or lacks its value.
    """
    rest: list[str] = []
    layer: dict[str, Any] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        if word == "--":
            rest += [word, *waiting]
            break
        name, equals, given = word.partition("=")
        if name in ours:
            rest.append(word)
            if ours[name] and not equals and waiting:
                rest.append(waiting.pop(0))
            continue
        try:
            _take(name, given if equals else None, waiting, layer, ours)
        except ValueError as error:
            raise FlagRefused(str(error)) from None
    return rest, list(_overrides(layer))


def _overrides(layer: Mapping[str, Any]) -> Iterator[str]:
    for key, value in layer.items():
        if key in _AT_TOP_LEVEL:
            yield f"{key}={json.dumps(value)}"
        else:
            yield from (f"{key}.{argument}={json.dumps(each)}" for argument, each in value.items())


def _take(name: str, given: str | None, waiting: list[str], layer: dict[str, Any], ours: Mapping[str, bool]) -> None:
    """Put one flag into the layer. Its values are ``given``, or taken from the words that wait."""
    if re.fullmatch(r"-O\d+", name):  # as compilers have it
        name, given = "--optimization-level", name[2:]
    spelled, dot, path = name.partition(".")
    if spelled.startswith("--"):
        spelled = spelled.replace("_", "-")
    place = _places().get("--optimization-level" if spelled == "-O" else spelled)
    if place is None:
        raise FlagRefused(f"{name}: is neither an option of posenc nor a flag of vLLM{_hint(spelled, ours)}")
    if dot:
        place = dataclasses.replace(place, keys=tuple(path.removesuffix("+").split(".")), adds=path.endswith("+"))
    flag = place.flag
    if flag.nargs == 0 and not dot:
        if given is not None:
            raise FlagRefused(f"{name}: takes no value, got {given!r}")
        value: Any = spelled != opposite(flag)
    elif flag.nargs in ("+", "*") and not dot and given is None:
        value = [_value(flag, word) for word in _until_flag(waiting)]
        if not value:
            raise FlagRefused(f"{name}: needs a value")
    elif given is None and (not waiting or _is_flag(waiting[0], ours)):
        if flag.nargs != "?":
            raise FlagRefused(f"{name}: needs a value")
        value = True
    else:
        text = waiting.pop(0) if given is None else given
        value = read_value(name, text) if dot else _value(flag, text)
    _put(layer, place, name, value)


def _put(layer: dict[str, Any], place: _Place, name: str, value: Any) -> None:
    argument = place.flag.name
    if argument == "served_model_name":
        if isinstance(value, list):
            if len(value) > 1:
                raise FlagRefused(f"{name}: posenc serves a model under one name, got {', '.join(value)}")
            value = value[0]
    elif argument == "max_model_len" and value in _FITS_MEMORY:
        value = None  # the longest request that the cache has room for, where the method allows it
    if argument in _AT_TOP_LEVEL:
        layer[argument] = value
        return
    section = layer.setdefault(place.section, {})
    if place.flag.appends:
        section.setdefault(argument, []).append(value)
        return
    *between, last = (argument, *place.keys)
    for key in between:
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise FlagRefused(f"{name}: {key} has the value {section!r} already, which has no keys")
    if place.adds:
        section.setdefault(last, []).append(value)
    else:
        section[last] = value


def _value(flag: Flag, text: str) -> Any:
    """A flag's value as YAML would have it; a text where vLLM takes a text."""
    if flag.takes_text:
        return text
    if suffixed := _SUFFIXED.fullmatch(text):  # vLLM's own 1k = 1,000 and 1K = 1,024
        whole, decimals, unit = suffixed.groups()
        if unit.islower() or not decimals:
            base = 1000 if unit.islower() else 1024
            return round(float(whole + (decimals or "")) * base ** _POWERS[unit.lower()])
    return read_value(flag.options[0], text)


def _until_flag(waiting: list[str]) -> Iterator[str]:
    while waiting and not waiting[0].startswith("-"):
        yield waiting.pop(0)


def _is_flag(word: str, ours: Mapping[str, bool]) -> bool:
    name = word.partition("=")[0].partition(".")[0]
    return name in ours or name.replace("_", "-") in _places()


@functools.cache
def _places() -> dict[str, _Place]:
    """Where the value of each flag goes, by its spelling."""
    known = table.read_stored()
    if known is None:  # a release that is not stored: its parser knows
        from posenc_runtime.vllm_adapter.settings.arguments.parser import parser

        known = table.of_actions(parser()[1])
    places = {
        option: _Place(section, flag)
        for section, flags in known.items()
        for flag in flags.values()
        for option in flag.options
    }
    for name in OF_SEVERAL_SERVERS:  # refused with the reason
        flag = Flag(name, (f"--{name.replace('_', '-')}",), "?", False, dict.fromkeys(("bool", "int", "float"), False))
        places.setdefault(flag.options[0], _Place("server", flag))
    return places


def _hint(name: str, ours: Mapping[str, bool]) -> str:
    return did_you_mean(name, [option for option in (*ours, *_places()) if option.startswith("--")])
