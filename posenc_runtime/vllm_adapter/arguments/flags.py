"""One setting as flags for vLLM's parser, which takes texts: what it would read as something else is refused."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from posenc_runtime.vllm_adapter.errors import Refused

# Their parser takes texts and their configuration numbers: what YAML reads as a number is meant as one.
_NUMBERS = ("optimization_level", "kv_cache_dtype_skip_layers")
# Left out, they are none. An empty value is somebody's mistake, and would open the server.
_SECRETS = ("api_key",)


class ArgumentRefused(Refused):
    """An engine or front-end argument is unknown, contradicts a setting, or has a value that vLLM refuses."""


def flags_of(name: str, action: argparse.Action, value: Any) -> Iterator[str]:
    """The texts that say a setting to vLLM's parser; none where leaving it out says the same.

    Args:
        name: the setting's path, for refusals.
        action: the parser's, for this setting.
        value: as it is read from YAML; None takes vLLM's default.

    Raises:
        ArgumentRefused: when the value is not of the kind that the flag is for.
    """
    if action.dest in _SECRETS and (value is None or value in ("", []) or (isinstance(value, list) and "" in value)):
        raise ArgumentRefused(f"{name}: must be a text that is not empty, got {value!r}: leave it out to have none")
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
            raise ArgumentRefused(f"{name}: must be a text, got {item!r}: quote it")
    texts = [item if isinstance(item, str) else json.dumps(item) for item in items]
    dashed = [text for text in texts if text.startswith("-")]
    if dashed and len(texts) > 1:
        raise ArgumentRefused(f"{name}: of several texts none may begin with a dash, got {dashed[0]!r}")
    if dashed:
        yield f"{positive}={dashed[0]}"
        return
    yield positive
    yield from texts


def _opposite(action: argparse.Action, positive: str) -> str | None:
    """The flag of the same action that says no: ``--no-x``, or of ``--enable-x`` and ``--disable-x`` the other one."""
    name = positive.removeprefix("--")
    spelled = (f"--no-{name}", f"--disable-{name.removeprefix('enable-')}", f"--enable-{name.removeprefix('disable-')}")
    return next((flag for flag in spelled if flag in action.option_strings and flag != positive), None)


def _is_read_as_text(action: argparse.Action, value: Any) -> bool:
    """Whether what YAML reads as something else is a text to vLLM, which need not be the one that was written."""
    if action.dest in _NUMBERS or not isinstance(value, bool | int | float):
        return False
    if not callable(action.type):
        return True
    try:
        return isinstance(action.type(json.dumps(value)), str)
    except (argparse.ArgumentTypeError, TypeError, ValueError):
        return False  # the parser says why
