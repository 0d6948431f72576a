"""Turns one setting into flags for vLLM's parser, which takes texts; refuses a value that it would misread."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

from posenc_runtime.vllm_adapter.contract.errors import Refused

# vLLM's parser takes texts for these, but its configuration takes numbers: a number in YAML is meant as a number.
_NUMBERS = ("optimization_level", "kv_cache_dtype_skip_layers")
# Whoever wants no secret leaves the setting out. An empty value is a mistake, and would leave the server open.
_SECRETS = ("api_key",)


class ArgumentRefused(Refused):
    """An engine or front-end argument is unknown, contradicts a setting, or has a value that vLLM refuses."""


# Values that YAML has for a kind, by which a parser is asked how it takes the kind.
_PROBES = {"bool": (True, False), "int": (0, 1, 2, -1, 4096), "float": (0.0, 0.5, 1e-3, -2.5)}


@dataclasses.dataclass(frozen=True)
class Flag:
    """How vLLM's parser takes an argument.

    Attributes:
        name: of the argument.
        options: its spellings, short ones among them.
        nargs: how many words it takes, as argparse says it.
        appends: whether it may be repeated.
        texts: by the kind of a value in YAML, whether the parser takes it as a text; None where that depends on the
            value.
    """

    name: str
    options: tuple[str, ...]
    nargs: int | str | None
    appends: bool
    texts: Mapping[str, bool | None]
    action: argparse.Action | None = dataclasses.field(default=None, compare=False, repr=False)

    @classmethod
    def of_action(cls, action: argparse.Action) -> Self:
        """The flag of an action of a parser."""
        texts = dict[str, bool | None]()
        for kind, probes in _PROBES.items():
            taken = {_is_taken_as_text(action, probe) for probe in probes}
            texts[kind] = taken.pop() if len(taken) == 1 else None
        appends = isinstance(action, argparse._AppendAction)
        return cls(action.dest, tuple(action.option_strings), action.nargs, appends, texts, action)

    @classmethod
    def of_mapping(cls, said: Mapping[str, Any]) -> Self:
        """The flag that ``to_mapping`` gave."""
        return cls(said["name"], tuple(said["options"]), said["nargs"], said["appends"], said["texts"])

    @property
    def positive(self) -> str:
        """Its first long spelling."""
        return next(option for option in self.options if option.startswith("--"))

    @property
    def takes_text(self) -> bool:
        """Whether a number on the command line stays a text."""
        return bool(self.texts["int"]) and self.name not in _NUMBERS

    def to_mapping(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        fields = ("name", "options", "nargs", "appends", "texts")
        return {field: getattr(self, field) for field in fields}


class Unlisted(Exception):
    """Only vLLM's parser can say how it takes a value."""


def flags_of(name: str, flag: Flag, value: Any) -> Iterator[str]:
    """The words of a command line that give a setting to vLLM's parser; none where leaving it out means the same.

    Args:
        name: the setting's path, for refusals.
        flag: of this setting.
        value: as it is read from YAML; None means vLLM's default.

    Raises:
        ArgumentRefused: when the type of the value does not fit the flag.
        Unlisted: when the flag is of a stored table, and it depends on the value whether the type fits.
    """
    if flag.name in _SECRETS and (value is None or value in ("", []) or (isinstance(value, list) and "" in value)):
        raise ArgumentRefused(f"{name}: must be a string that is not empty, got {value!r}: leave it out for no key")
    if value is None:
        return
    positive = flag.positive
    if flag.nargs == 0:
        if not isinstance(value, bool):
            raise ArgumentRefused(f"{name}: must be true or false, got {value!r}")
        # Some flags have no opposite: left out, they are false.
        word = positive if value else opposite(flag)
        if word is not None:
            yield word
        return
    if flag.nargs == "?" and isinstance(value, bool):
        if value:
            yield positive
        return
    if flag.appends and isinstance(value, list):
        for item in value:
            yield from flags_of(name, flag, item)
        return
    items = value if isinstance(value, list) and flag.nargs in ("*", "+") else [value]
    for item in items:
        if not isinstance(item, str) and _is_read_as_text(flag, item):
            raise ArgumentRefused(f"{name}: must be a string, got {item!r}: quote it")
    texts = [item if isinstance(item, str) else json.dumps(item) for item in items]
    dashed = [text for text in texts if text.startswith("-")]
    if dashed and len(texts) > 1:
        raise ArgumentRefused(
            f"{name}: must have no string that begins with a dash beside others, got {dashed[0]!r}: vLLM would read it "
            "as a flag"
        )
    if dashed:
        yield f"{positive}={dashed[0]}"
        return
    yield positive
    yield from texts


def opposite(flag: Flag) -> str | None:
    """The flag of the same action that means false: ``--no-x``, ``--disable-x`` for ``--enable-x``, or the reverse."""
    positive = flag.positive
    name = positive.removeprefix("--")
    spelled = (f"--no-{name}", f"--disable-{name.removeprefix('enable-')}", f"--enable-{name.removeprefix('disable-')}")
    return next((word for word in spelled if word in flag.options and word != positive), None)


def _is_read_as_text(flag: Flag, value: Any) -> bool:
    """Whether vLLM takes as a text what YAML has read as a boolean or a number.

    The text may then differ from what the user wrote: ``1e-3`` would become ``0.001``.
    """
    if flag.name in _NUMBERS or not isinstance(value, bool | int | float):
        return False
    if flag.action is not None:
        return _is_taken_as_text(flag.action, value)
    if (taken := flag.texts[type(value).__name__]) is None:
        raise Unlisted(flag.name)
    return taken


def _is_taken_as_text(action: argparse.Action, value: Any) -> bool:
    if not callable(action.type):
        return True
    try:
        return isinstance(action.type(json.dumps(value)), str)
    except (argparse.ArgumentTypeError, TypeError, ValueError):
        return False  # the parser refuses the value and says why
