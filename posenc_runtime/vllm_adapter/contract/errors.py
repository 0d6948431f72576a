"""The base classes of the errors that users see as lines of text, without a traceback, and wording that they share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Refused(ValueError):
    """Something that was asked for is refused: the message gives the rule, the value and what to do, a line for each.

    Attributes:
        status: a command's exit status.
    """

    status = 2


class Failed(RuntimeError):
    """Something that was accepted has failed: the message says what, and where to read more.

    Attributes:
        what: has failed.
    """

    what = "failed"


class Unsupported(Refused):
    """The engine's configuration cannot be combined with per-request scales."""


class CannotListen(Refused):
    """The address is taken, is not this machine's, or may not be used."""

    status = 1


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: it suggests the closest known name; empty where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def rule_of(message: str) -> str:
    """The rule that pydantic's message of a problem states, in our words."""
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def changed_keys(where: str) -> str:
    """The refusal of a model or a layer that changes keys between their rotation and the cache.

    Args:
        where: the name of the architecture or of the layer.
    """
    return (
        "re-rotation needs layers that rotate the beginning or the end of each head, and change keys no more before "
        f"they are cached, but {where} changes them in another way: set on_crossing to recompute or pin, and "
        "prefix_reuse to exact"
    )
