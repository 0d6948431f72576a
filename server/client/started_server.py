"""Starts a server for a command, on a port that is free, and ends it with the command."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import IO, TYPE_CHECKING, NoReturn

from posenc_runtime.vllm_adapter.contract.errors import Failed

if TYPE_CHECKING:
    from rich.console import Console

_STOP_SECONDS = 30.0
HOST = "127.0.0.1"


class DidNotStart(Failed):
    """The server ended before it took requests; the message is what it said last."""


@contextlib.contextmanager
def start_server(arguments: Sequence[str], console: Console) -> Iterator[str]:
    """Run ``posenc serve`` as a process of its own; gives its address once it takes requests.

    Args:
        arguments: what to serve, as on the command line.
        console: where its progress is shown.

    Raises:
        DidNotStart: when it ends before.
    """

    def command(port: int) -> list[str]:
        listening = ("--set", f"server.host={HOST}", "--set", f"server.port={port}", "--set", "log_requests=off")
        return [sys.executable, "-m", "server", "serve", *arguments, *listening]

    with launch(command, console) as address:
        yield address


@contextlib.contextmanager
def launch(
    command: Callable[[int], Sequence[str]], console: Console, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run a server as a process of its own; gives its address once it takes requests.

    Args:
        command: how it is started on a port of this machine.
        console: where its progress is shown.
        environment: over that of this process.

    Raises:
        DidNotStart: when it ends before.
    """
    port = _free_port()
    address = f"http://{HOST}:{port}"
    with tempfile.TemporaryFile("w+", errors="replace") as said, _ended_by_sigterm():
        # A group of its own: an interrupt from the keyboard reaches the server through us, after the last answer.
        process = subprocess.Popen(
            command(port), stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, process_group=0,
            preexec_fn=_ended_with_us(), env=os.environ | dict(environment or {}),
        )  # fmt: skip
        try:
            with console.status("starting the server"):
                _wait(process, address, said)
            yield address
        finally:
            _stop(process)


def _wait(process: subprocess.Popen[bytes], address: str, said: IO[str]) -> None:
    import httpx

    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{address}/health", timeout=5).is_success:
                return
        if process.poll() is not None:
            said.seek(0)
            words = [line.strip() for line in said if line.strip()]
            told = [line for line in words if line.startswith(("refused ", "failed "))] or words[-1:]
            raise DidNotStart("the server did not start: " + ("; ".join(told) or f"status {process.returncode}"))
        time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ended_with_us() -> Callable[[], None] | None:
    """Called in the new process before it is the server: the kernel then ends it with us, even if we are killed."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl, death_signal = ctypes.CDLL(None).prctl, 1
    return lambda: prctl(death_signal, signal.SIGTERM, 0, 0, 0)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let a command that is told to end stop its server first."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
