"""The port of several API servers, which their parent holds open until the engine has ended."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

_NOT_ACCEPTING = 2**31 - 1  # vLLM's number of connections of a server that takes none


@contextlib.contextmanager
def closed_by_the_last(listening: socket.socket, client_config: Mapping[str, Any]) -> Iterator[None]:
    """When the last of several API servers ends, close their port for all processes.

    The parent does not answer. With the port open, clients would be connected, and wait until the parent ends.

    Args:
        listening: the servers' socket.
        client_config: of one server, from vLLM. ``api_server_loads`` has the open connections of each; where it is
            missing, the port stays open.
    """
    loads, kept = client_config.get("api_server_loads"), listening.dup()
    try:
        yield
    finally:
        if loads is not None and min(loads) == _NOT_ACCEPTING:
            with contextlib.suppress(OSError):  # another server has closed it
                kept.shutdown(socket.SHUT_RDWR)
        kept.close()
