"""Shows the progress of something that takes long: for how long it has run, and what it is doing."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape

_LINE_SECONDS = 15.0  # between two lines, where the output is no terminal
_BAR = re.compile(r"(?:^|\s)([A-Z][\w .,-]+?)(?: \([^)]*\))*:\s+(\d+)%")


class Progress:
    """Shows progress until the context ends: on a terminal in one changing line, elsewhere in a line now and then.

    Args:
        what: is in progress, in words.
        watched: called for each line; returns what the line says of the state at its end.
    """

    def __init__(
        self, out: Console, what: str = "starting the engine", watched: Callable[[], str] | None = None
    ) -> None:
        self._out, self._what, self._began = out, what, 0.0
        self._watched = watched or self._heard_last
        self._doing, self._ended = "", threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def heard(self, line: str) -> None:
        """Note a state of one of vLLM's progress bars; other lines are passed over."""
        if found := _BAR.search(line):
            self._doing = f": {found[1].strip().lower()}, {found[2]} %"

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Show nothing any more; may be called again."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _show(self) -> None:
        if not self._out.is_terminal:
            while not self._ended.wait(_LINE_SECONDS):
                self._out.print(self._line(), markup=False, highlight=False)
            return
        with self._out.status(self._what) as status:
            while not self._ended.wait(0.2):
                status.update(escape(self._line()))

    def _line(self) -> str:
        return f"{self._what}, {time.monotonic() - self._began:.0f} s{self._watched()}"

    def _heard_last(self) -> str:
        return self._doing
