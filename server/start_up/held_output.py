"""Holds back what vLLM and other libraries write while we check or start something; shows it where that fails."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from posenc_runtime.vllm_adapter.contract.errors import Refused
from posenc_runtime.vllm_adapter.releases import IncompatibleVllm
from server.start_up.engine_log import EngineLog

_MOST_CHARACTERS = 200_000  # the last ones are held; the cause of a failure stands at the end
_LOOK_MILLISECONDS = 500
_EXPLAINED = (Refused, IncompatibleVllm)  # errors whose own message says everything


@contextlib.contextmanager
def checking(*, verbose: bool = False) -> Iterator[None]:
    """A context for code that imports vLLM to check settings: output is held back.

    Args:
        verbose: hold nothing back.
    """
    if verbose:
        _prepare(verbose=True)
        yield
        return
    from rich.console import Console

    # A copy of stderr, made before HeldOutput replaces it.
    with os.fdopen(os.dup(2), "w") as stderr, HeldOutput(), Console(file=stderr).status("checking the settings"):
        _prepare(verbose=False)
        yield


def _prepare(*, verbose: bool) -> None:
    from posenc_runtime.vllm_adapter import serving  # takes seconds to import

    serving.prepare_environment(verbose=verbose)


class HeldOutput:
    """Replaces stdout and stderr of this process and of processes that it starts, until release or the context's end.

    The held output is shown on stderr where the context ends with an exception whose message does not say everything.
    Processes that were started meanwhile go on writing to the same pipe: from then on, their output goes to stderr, of
    each error the first line.

    Args:
        heard: called with each line, or state of a progress bar, while output is held.
    """

    def __init__(self, heard: Callable[[str], None] = lambda line: None) -> None:
        self._heard = heard
        self._log = EngineLog(self._show)
        self._held, self._is_holding = "", True
        self._lock = threading.Lock()
        _flush()
        self._before = {stream: os.dup(stream) for stream in (1, 2)}
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        for stream in self._before:
            os.dup2(writing, stream)
        os.close(writing)
        threading.Thread(target=self._pass_on, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held = self.release()
        if isinstance(error, Exception) and not isinstance(error, _EXPLAINED):
            sys.stderr.write(held)

    def release(self) -> str:
        """Stop holding. Returns what was held so far, which is not shown; later output is shown.

        Returns, when called again, what processes have written with errors that were not shown yet.
        """
        _flush()
        with self._lock:
            if self._is_holding:
                for stream, before in self._before.items():
                    os.dup2(before, stream)
                while written := self._read():
                    self._hold(written)
                self._is_holding = False
                held, self._held = self._held, ""
                return held
            taken = self._log.take()
        time.sleep(_LOOK_MILLISECONDS / 1000)  # then the thread that passes on waits without a time limit
        return taken

    def write(self, text: str) -> None:
        """Take what this process logs of its engine after the release, as if the engine had written it."""
        with self._lock:
            self._log.write(text)

    def flush(self) -> None:
        """Nothing waits here."""

    def _pass_on(self) -> None:
        readable = select.poll()
        readable.register(self._reading, select.POLLIN)
        written: bytes | None = None
        while written != b"":
            # Without a time limit where it can be: a thread that wakes while the interpreter ends may hang.
            readable.poll(_LOOK_MILLISECONDS if self._log.has_late else None)
            with self._lock:
                written = self._read()
                is_held = self._is_holding
                if written and is_held:
                    self._hold(written)
                elif written:
                    self._log.write(written.decode(errors="replace"))
                else:
                    self._log.show_late()
            if written and is_held:
                for line in re.split(r"[\r\n]+", written.decode(errors="replace")):
                    if line.strip():
                        self._heard(line.strip())
        with self._lock:
            for unused in (self._reading, *self._before.values()):
                os.close(unused)

    def _show(self, text: str) -> None:
        # Where it cannot be written, processes must be able to go on writing to the pipe.
        with contextlib.suppress(OSError):
            _write(self._before[2], text.encode())

    def _read(self) -> bytes | None:
        """What is in the pipe: empty at its end; None where it is empty now, and more may come."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._reading, 1 << 16)
        return None

    def _hold(self, written: bytes) -> None:
        self._held = (self._held + written.decode(errors="replace"))[-_MOST_CHARACTERS:]


def _flush() -> None:
    """Write what Python has buffered before the streams are replaced: it belongs to the present ones."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _write(stream: int, written: bytes) -> None:
    while written:
        written = written[os.write(stream, written) :]
