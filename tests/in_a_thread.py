"""A server that a test makes itself, served over HTTP by a thread of the test's process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

import uvicorn
from fastapi import FastAPI

from tests.benchmarks.servers import free_port


class Fake(Protocol):
    """A server without an engine."""

    def app(self) -> FastAPI: ...


@contextlib.contextmanager
def running(fake: Fake) -> Iterator[str]:
    """Serve it on a free port; gives the address."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(fake.app(), port=port, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            threading.Event().wait(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
