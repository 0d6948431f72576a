"""Turns one setting into flags for vLLM's parser, which takes texts; refuses a value that it would misread."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from posenc_runtime.vllm_adapter.errors import Refused

# vLLM's parser takes texts for these, but its configuration takes numbers: a number in YAML is meant as a number.
_NUMBERS = ("optimization_level", "kv_cache_dtype_skip_layers")
# Whoever wants no secret leaves the setting out. An empty value is a mistake, and would leave the server open.
_SECRETS = ("api_key",)


class ArgumentRefused(Refused):
    """An engine or front-end argument is unknown, contradicts a setting, or has a value that vLLM refuses."""


def flags_of(name: str, action: argparse.Action, value: Any) -> Iterator[str]:
    """The words of a command line that give a setting to vLLM's parser; none where leaving it out means the same.

    Args:
        name: the setting's path, for refusals.
        action: argparse's action for this setting.
        value: as it is read from YAML; None means vLLM's default.

    Raises:
        ArgumentRefused: when the type of the value does not fit the flag.
    """
    if action.dest in _SECRETS and (value is None or value in ("", []) or (isinstance(value, list) and "" in value)):
        raise ArgumentRefused(f"{name}: must be a string that is not empty, got {value!r}: leave it out for no key")
    if value is None:
        return
    positive = next(option for option in action.option_strings if option.startswith("--"))
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ArgumentRefused(f"{name}: must be true or false, got {value!r}")
        # Some flags have no opposite: left out, they are false.
        flag = positive if value else _opposite(action, positive)
        if flag is not None:
            yield flag
        return
    if action.nargs == "?" and isinstance(value, bool):
        if value:
            yield positive
        return
    if isinstance(action, argparse._AppendAction) and isinstance(value, list):
        for item in value:
            yield from flags_of(name, action, item)
        return
    items = value if isinstance(value, list) and action.nargs in ("*", "+") else [value]
    for item in items:
        if not isinstance(item, str) and _is_read_as_text(action, item):
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


def _opposite(action: argparse.Action, positive: str) -> str | None:
    """The flag of the same action that means false: ``--no-x``, ``--disable-x`` for ``--enable-x``, or the reverse."""
    name = positive.removeprefix("--")
    spelled = (f"--no-{name}", f"--disable-{name.removeprefix('enable-')}", f"--enable-{name.removeprefix('disable-')}")
    return next((flag for flag in spelled if flag in action.option_strings and flag != positive), None)


def _is_read_as_text(action: argparse.Action, value: Any) -> bool:
    """Whether vLLM takes as a text what YAML has read as a boolean or a number.

    The text may then differ from what the user wrote: ``1e-3`` would become ``0.001``.
    """
    if action.dest in _NUMBERS or not isinstance(value, bool | int | float):
        return False
    if not callable(action.type):
        return True
    try:
        return isinstance(action.type(json.dumps(value)), str)
    except (argparse.ArgumentTypeError, TypeError, ValueError):
        return False  # the parser refuses the value and says why
