"""What every refusal and every failure that is told in a line has in common."""

from __future__ import annotations


class Refused(ValueError):
    """Something that was asked for is refused: the message gives the rule, the value and what to do, a line for each.

    Attributes:
        status: a command's exit status.
    """

    status = 2


class Failed(RuntimeError):
    """What was accepted has failed: the message says what, and where more is said."""


class Unsupported(Refused):
    """The engine's configuration cannot be combined with per-request scales."""
