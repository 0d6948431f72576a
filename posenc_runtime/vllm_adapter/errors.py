"""The base classes of the errors that users see as lines of text, without a traceback."""

from __future__ import annotations


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
