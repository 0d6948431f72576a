"""Our server as users start it: the command, in a process of its own, on a free port."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import yaml

READY_SECONDS = 300  # on a busy machine; an idle one takes half a minute


class ServerFailed(RuntimeError):
    """The server ended before it was ready; the message is the end of its log."""


@contextlib.contextmanager
def running_server(
    folder: pathlib.Path, settings: dict[str, Any], environment: dict[str, str] | None = None
) -> Iterator[str]:
    """Serve a deployment; gives the server's address, and stops it on leaving.

    Raises:
        ServerFailed: when it refuses to start.
    """
    port = free_port()
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings | {"server": {"port": port}}))
    log = folder / "server.log"
    address = f"http://127.0.0.1:{port}"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [str(pathlib.Path(sys.executable).with_name("posenc")), "serve", "--config", str(file), "--verbose"],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | (environment or {}),
            start_new_session=True,
        )
    try:
        _wait(process, address, log)
        yield address
    finally:
        _stop(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], address: str, log: pathlib.Path) -> None:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise ServerFailed(log.read_text()[-6000:])
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{address}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.5)
    raise ServerFailed(f"not ready after {READY_SECONDS} s: {log.read_text()[-6000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
