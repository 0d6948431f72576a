"""Shows what an engine writes while it serves. Of an error it shows one line, and keeps the traceback."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

_MOST_CHARACTERS = 200_000  # the last ones are kept
_WAIT_SECONDS = 3.0  # an engine that ends has ended by then, and its end is told in one line
_LONGEST_LINE = 300
# vLLM writes this before each line of an error.
_ERROR = re.compile(r"(?:\((\w+) pid=(\d+)\) )?(?:ERROR|CRITICAL) (\S+ \S+ \[[^\]]*\]) ?(.*)")

_PROCESS = re.compile(r"Process [\w-]+:")  # multiprocessing, before a traceback
_TRACEBACK = "Traceback ("


class EngineLog:
    """Takes the output of an engine's processes, and shows it: of each error only the first line.

    Errors are shown some seconds late, so that whoever tells why an engine has ended can ``take`` them before.

    Args:
        show: writes a text for the user.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._kept, self._begun = "", ""
        self._late: list[tuple[float, str]] = []
        self._record: tuple[str | None, ...] | None = None
        self._is_traceback = False

    def write(self, text: str) -> None:
        """Take some output; the last line may be incomplete."""
        self._kept = (self._kept + text)[-_MOST_CHARACTERS:]
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._take_line(line)
        self.show_late()

    @property
    def has_late(self) -> bool:
        """Whether errors wait to be shown."""
        return bool(self._late)

    def show_late(self) -> None:
        """Show errors that have waited long enough; called now and then."""
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            self._show(self._late.pop(0)[1])

    def take(self) -> str:
        """All that was written, if errors among it have not been shown yet; they are not shown any more."""
        taken = self._kept if self._late else ""
        self._late.clear()
        return taken

    def _take_line(self, line: str) -> None:
        found = _ERROR.match(line)
        if found is not None:
            *record, said = found.groups()
            if tuple(record) != self._record:
                self._record = tuple(record)
                self._later(f"{record[0] or 'API server'}: {said}")
        elif self._is_traceback:
            self._is_traceback = not line or line.startswith((" ", _TRACEBACK))
            if not self._is_traceback:
                self._later(line)
        elif line.startswith(_TRACEBACK) or _PROCESS.fullmatch(line):
            self._is_traceback = True
        else:
            self._show(f"{line}\n")

    def _later(self, line: str) -> None:
        cut = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} ..."
        self._late.append((time.monotonic() + _WAIT_SECONDS, f"{cut}\n"))
