"""Refuses an address at which no server can listen, before vLLM is imported: vLLM binds it half a minute later."""

from __future__ import annotations

import contextlib
import errno
import socket

from posenc_runtime.vllm_adapter.contract.errors import CannotListen
from server.deployment.settings import Settings

_PORTS_TRIED = 100
_LAST_PORT = 65535


def refuse_taken(settings: Settings) -> None:
    """Check that the server can listen at its host and port now; it listens there only later.

    Raises:
        CannotListen: naming the settings, and a port that is free where another program has this one.
    """
    host, port = settings.server.host, settings.server.port
    if (settings.server.model_extra or {}).get("uds") is not None or port == 0:
        return
    if (error := _fault(host, port)) is None:
        return
    raise CannotListen(
        f"server.host, server.port: must be a free address, got {host} and {port}: {error.strerror or error}"
        f"{_advice(host, port, error)}"
    )


def _advice(host: str, port: int, error: OSError) -> str:
    if error.errno not in (errno.EADDRINUSE, errno.EACCES):
        return ""
    first = 8000 if error.errno == errno.EACCES else port + 1
    others = range(first, min(first + _PORTS_TRIED, _LAST_PORT + 1))
    free = next((other for other in others if _fault(host, other) is None), None)
    if free is None:
        return "; name another port with --port PORT or --set server.port=PORT"
    return f"; {free} is free: --port {free} or --set server.port={free}"


def _fault(host: str, port: int) -> OSError | None:
    """What keeps a server from binding an address, which is free again afterwards."""
    # As vLLM does it: a name that is no address of version 6 is one of version 4.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error
    return None
