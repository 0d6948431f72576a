"""What vLLM's processes write while they start is held back, and shown only where the start fails."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

_MOST_CHARACTERS = 200_000  # of what is held; a start that writes more has said its cause in its last part


class HeldOutput:
    """Stands in for stdout and stderr of this process, and so of all that it starts, until it is released.

    What was started meanwhile goes on writing to the same pipe afterwards: from then on it is passed on to stderr.

    Args:
        heard: called with each line, or state of a progress bar, while output is held.
    """

    def __init__(self, heard: Callable[[str], None] = lambda line: None) -> None:
        self._heard = heard
        self._held, self._is_holding = "", True
        self._lock = threading.Lock()
        self._stdout, self._stderr = os.dup(1), os.dup(2)
        reading, writing = os.pipe()
        os.set_inheritable(writing, True)
        for stream in (1, 2):
            os.dup2(writing, stream)
        os.close(writing)
        threading.Thread(target=self._pass_on, args=(reading,), daemon=True).start()

    def release(self) -> str:
        """What was held so far, which is not shown by itself; what follows is."""
        with self._lock:
            if self._is_holding:
                os.dup2(self._stdout, 1)
                os.dup2(self._stderr, 2)
            self._is_holding = False
            held, self._held = self._held, ""
            return held

    def _pass_on(self, reading: int) -> None:
        while written := os.read(reading, 1 << 16):
            with self._lock:
                if not self._is_holding:
                    _write(self._stderr, written)
                    continue
                text = written.decode(errors="replace")
                self._held = (self._held + text)[-_MOST_CHARACTERS:]
            for line in re.split(r"[\r\n]+", text):
                if line.strip():
                    self._heard(line.strip())


def _write(stream: int, written: bytes) -> None:
    while written:
        written = written[os.write(stream, written) :]
