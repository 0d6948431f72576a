"""Start a server, wait until it answers, stop it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Protocol

import httpx

START_SECONDS = 600.0
_STOP_SECONDS = 60.0
_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    # As `posenc serve` sets them for itself: one core for the scheduler, and the served length decides.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
}


class Process(Protocol):
    """What is asked of a server's process, the leader of a group: as of ``subprocess.Popen``."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


Start = Callable[[list[str], dict[str, str], IO[str]], Process]


def started(arguments: list[str], environment: dict[str, str], said: IO[str]) -> Process:
    """A process of the command line ``arguments``, output into a file."""
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        env=environment,
        # A group of its own: it can be stopped whole, and an interrupt from the keyboard reaches it through us. But
        # our session: Linux divides cores among sessions first, and 6.18 with two of them gives a client none for
        # seconds while a server in another session is busy.
        process_group=0,
    )


@dataclasses.dataclass(frozen=True)
class Command:
    """How a server is started, but for its port.

    Attributes:
        arguments: ``{port}`` in them is replaced by the port.
        environment: over that of this process.
        start: makes the process.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    start: Start = started

    def on_port(self, port: int) -> list[str]:
        return [argument.replace("{port}", str(port)) for argument in self.arguments]


class ServerFailed(RuntimeError):
    """The server did not start; the message is the end of its log."""


@contextlib.contextmanager
def running(
    command: Command,
    *,
    waiting: Callable[[], None] = lambda: None,
    log: pathlib.Path | None = None,
    start_seconds: float = START_SECONDS,
    health: str = "/health",
) -> Iterator[str]:
    """Start a server on a free port, give its address once it is healthy, stop it on leaving.

    Args:
        waiting: called now and then until the server is up.
        log: where its output goes, if that is to be kept.
        start_seconds: that it may take to be up.
        health: the route that says whether it is.

    What goes wrong while it serves is raised with the end of its log as a note.

    Raises:
        ServerFailed: when it ends or is not up in time.
    """
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with (
        tempfile.NamedTemporaryFile("w+", errors="replace") if log is None else log.open("w+", errors="replace") as said
    ):
        process = command.start(command.on_port(port), os.environ | _ENVIRONMENT | dict(command.environment), said)
        try:
            _wait_until_healthy(process, f"{address}{health}", said, waiting, start_seconds)
            try:
                yield address
            except Exception as error:
                ended = process.poll()
                state = "still runs" if ended is None else f"ended with status {ended}"
                error.add_note(f"the server {state}; its log ends with\n{_end(said)}")
                raise
        finally:
            _stop(process)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(process: Process, url: str, log: IO[str], waiting: Callable[[], None], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5).status_code == 200:
                return
        if (status := process.poll()) is not None:
            raise ServerFailed(f"the server ended with status {status}; its log ends with\n{_end(log)}")
        if time.monotonic() > deadline:
            raise ServerFailed(f"the server was not up after {seconds:.0f} s; its log ends with\n{_end(log)}")
        waiting()
        time.sleep(0.5)


def _stop(process: Process) -> None:
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # Whatever it started and left behind would go on taking memory and time from the next server.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(log: IO[str]) -> str:
    log.seek(0)
    return log.read()[-6000:]
