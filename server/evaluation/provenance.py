"""When a report was written, and by which command, so that its reader can repeat it."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterator, Sequence

_KEY = "--api-key"


def told(arguments: Sequence[str]) -> dict[str, str]:
    """For a report: the date, and the command without an API key.

    Args:
        arguments: of ``posenc``.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["posenc", *_without_key(arguments)]),
    }


def _without_key(arguments: Sequence[str]) -> Iterator[str]:
    rest = iter(arguments)
    for argument in rest:
        if argument == _KEY:
            next(rest, None)
        elif not argument.startswith(f"{_KEY}="):
            yield argument
