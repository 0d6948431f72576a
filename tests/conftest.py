from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

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
    if registry := sys.modules.get("vllm.model_executor.models.registry"):
        _look_at_models_here(registry)
    gc.freeze()
    gc.enable()


def _look_at_models_here(registry: ModuleType) -> None:
    """vLLM looks at a model that is new to this machine in another process, lest CUDA starts; imports take it long."""
    from tests.engine.device import ON_CUDA

    def looked_at(look: Callable[[], Any]) -> Any:
        with warnings.catch_warnings(action="ignore"):  # of what its modules import
            return look()

    if not ON_CUDA:
        registry._run_in_subprocess = looked_at


@pytest.fixture(autouse=True)
def restored_environment() -> Iterator[None]:
    """Take out of the environment what a test left there: commands run in our process, and set what vLLM reads."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
