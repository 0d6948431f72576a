"""A hub on this machine: it gives files as Hugging Face's does, and refuses them, and can be silent."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub:
    """What it gives, and what it was asked.

    Attributes:
        files: by path below the address, ``/NAME/resolve/REVISION/FILE``.
        refusals: statuses for the next requests, each with the error code that the hub gives; the last one stays.
        asked: method, path and token of every request for a file so far.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.refusals: list[tuple[int, str]] = []
        self.asked: list[tuple[str, str, str | None]] = []
        self.endpoint = ""

    def put(self, name: str, file: str, content: bytes, revision: str = "main") -> None:
        self.files[f"/{name}/resolve/{revision}/{file}"] = content


@contextlib.contextmanager
def local_hub() -> Iterator[LocalHub]:
    """A hub that runs."""
    hub = LocalHub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            if "/resolve/" not in self.path:  # what else clients are curious about
                return self.send_error(404)
            hub.asked.append((self.command, self.path, self.headers["authorization"]))
            status, error = (*hub.refusals[:1], (200, ""))[0]
            del hub.refusals[: len(hub.refusals) > 1]
            content = hub.files.get(self.path)
            if status == 200 and content is None:
                status, error = 404, "EntryNotFound"
            self.send_response(status)
            if status == 200:
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", '"of-this-content"')
            if error:
                self.send_header("X-Error-Code", error)
            body = content or b"" if status == 200 else b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()


@contextlib.contextmanager
def silent_hub(*, drips: bool = False) -> Iterator[str]:
    """The address of a hub that takes connections and says nothing, or one byte now and then, and never enough."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not over.wait(0.1):
                connection.sendall(b"a")

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        if drips:
            threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        over.set()


def address_of_nobody() -> str:
    """An address where connections are refused."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
