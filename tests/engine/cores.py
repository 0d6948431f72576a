"""Which core an engine computes on, so that engines of tests that run side by side have one each."""

from __future__ import annotations

import os


def own_core() -> str:
    """Of this process's engines, as ``VLLM_CPU_OMP_THREADS_BIND`` takes it."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return str(worker % (os.cpu_count() or 1))
