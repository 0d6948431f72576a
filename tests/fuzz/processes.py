"""The memory of a server's processes."""

from __future__ import annotations

import contextlib

import psutil


def resident_bytes(pid: int) -> dict[str, int]:
    """Resident bytes of a process and of all that it has started, by what each is."""
    found: dict[str, int] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                name = " ".join(process.cmdline())[:60] or process.name()
                found[f"{process.pid} {name}"] = process.memory_info().rss
    return found


def listening_at(port: int) -> int:
    """The process that listens at a port of this machine."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return int(connection.pid)
    raise LookupError(f"nobody listens at port {port}")
