"""Addresses beside the server's own, at which the same application lets in other requests."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from posenc_runtime.vllm_adapter.contract.errors import CannotListen
from posenc_runtime.vllm_adapter.settings.addresses import Address
from server.app.edge.access import GATE, Gate
from server.app.edge.headers import hide_server


@dataclasses.dataclass(frozen=True)
class Listener:
    """An address that is bound, and what it lets in."""

    bound: socket.socket
    gate: Gate


def bound(setting: str, text: str, *, is_shared: bool) -> socket.socket:
    """Bind an address.

    Args:
        setting: which names the address, for the error.
        text: the address.
        is_shared: whether other processes of this server bind it, too.

    Raises:
        CannotListen: when it is taken, or not this machine's.
    """
    address = Address.of(text)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise CannotListen(f"{setting}: must be a free address, got {text}: {error.strerror or error}") from error
    return listening


async def serve(app: ASGIApp, listener: Listener, state: Any, args: argparse.Namespace) -> None:
    """Serve the application at another address until its own server ends.

    Args:
        state: the application's; the server is there once it runs.
        args: vLLM's; certificates are those of the server.
    """
    config = uvicorn.Config(
        _at(app, listener.gate),
        lifespan="off",  # the application's own server starts and ends it
        log_config=None,
        log_level=args.uvicorn_log_level,
        access_log=False,
        ssl_keyfile=args.ssl_keyfile,
        ssl_certfile=args.ssl_certfile,
        ssl_ca_certs=args.ssl_ca_certs,
        ssl_cert_reqs=args.ssl_cert_reqs,
        ssl_ciphers=args.ssl_ciphers,
    )
    config.load()
    server = _Beside(config, state)
    hide_server(server)
    await server.serve(sockets=[listener.bound])


def _at(app: ASGIApp, gate: Gate) -> ASGIApp:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, GATE: gate}, receive, send)

    return application


class _Beside(uvicorn.Server):
    """Leaves signals to the application's own server, and ends when that one ends."""

    def __init__(self, config: uvicorn.Config, state: Any) -> None:
        super().__init__(config)
        self._state = state

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        its_own = getattr(self._state, "server", None)
        self.should_exit = self.should_exit or (its_own is not None and its_own.should_exit)
        return await super().on_tick(counter)
