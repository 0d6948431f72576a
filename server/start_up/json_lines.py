"""Writes lines as JSON, one object a line, for programs that collect logs."""

from __future__ import annotations

import contextlib
import datetime
import json
from typing import IO


class JsonLines:
    """A file that turns each line written to it into an object with the keys time, level, logger and message.

    A line that is an object of JSON itself, such as that of an ended request, adds its keys in place of a message.

    Args:
        out: where the objects go.
    """

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._begun = ""

    def write(self, text: str) -> int:
        """Write text; only whole lines are passed on."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                self._out.write(_object_of(line) + "\n")
        return len(text)

    def flush(self) -> None:
        """Pass on what the file below holds back."""
        self._out.flush()

    def isatty(self) -> bool:
        """Whether a person reads it: never."""
        return False


def _object_of(line: str) -> str:
    said: dict[str, object] = {"message": line.strip()}
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            said = json.loads(line)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": "INFO", "logger": "posenc"} | said)
