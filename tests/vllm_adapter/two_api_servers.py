"""Two API servers of one engine, which hear of different steps; prints what is said at ``/metrics``."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from tests.vllm_adapter.test_prometheus import registered


def serve(report: dict[str, dict[str, int]]) -> None:
    if (pid := os.fork()) == 0:
        registered().observe(report)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


if __name__ == "__main__":
    serve({"kv_blocks": {"1": 3, "4": 24}, "requests": {"4": 2}})
    serve({"kv_blocks": {"1": 5, "4": 0}, "requests": {"4": 1}})
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    print(generate_latest(registry).decode())
