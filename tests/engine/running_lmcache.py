"""LMCache's server, which keeps the KV blocks of several engines in its memory."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.benchmarks.servers import Command, free_port, running

CHUNK = 32  # tokens that are stored together
_MAIN = "from lmcache.cli.main import main; main()"
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}

needs_lmcache = pytest.mark.skipif(
    importlib.util.find_spec("lmcache") is None,
    reason="needs LMCache: pip install --no-deps lmcache==0.5.6, and what docs/operations.md says that it needs",
)


@contextlib.contextmanager
def running_lmcache() -> Iterator[dict[str, Any]]:
    """Run a server on free ports; gives the ``kv_transfer_config`` of engines that use it.

    Raises:
        ServerFailed: when it does not start.
    """
    port = free_port()
    server = (
        *(sys.executable, "-c", _MAIN, "server", "--host", "127.0.0.1", "--port", str(port), "--http-port", "{port}"),
        *("--chunk-size", str(CHUNK), "--l1-size-gb", "0.25", "--eviction-policy", "LRU"),
        *("--supported-transfer-mode", "auto"),  # the default does not answer an engine on a CPU
    )
    with running(Command(server, QUIET), start_seconds=180, health="/healthcheck"):
        yield {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                **{"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port, "lmcache.mp.mq_timeout": 60}
            },
        }
