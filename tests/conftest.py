from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A test is red for what it sees, never for how long a busy machine takes to see it.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_xdist_auto_num_workers() -> int:
    """How many engine tests run side by side.

    On the CPU two, where there are cores for both. On a GPU they follow each other: they measure the memory that is
    free there.
    """
    from tests.engine.device import ON_CUDA

    return 0 if ON_CUDA else min(2, len(os.sched_getaffinity(0)))


# All that tests import stays: looking through it over and over takes as long as importing it.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def restored_environment() -> Iterator[None]:
    """Take out of the environment what a test left there: commands run in our process, and set what vLLM reads."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
