"""Wording that the errors about our own settings and about vLLM's have in common."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: it suggests the closest known name; empty where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def rule_of(message: str) -> str:
    """The rule that pydantic's message of a problem states, in our words."""
    return message.removeprefix("Value error, ").replace("Input should be", "must be")
