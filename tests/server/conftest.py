from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest

# The commands import vLLM as they need it; see there why it is imported before.
import tests.vllm_adapter.conftest  # noqa: F401
from posenc_runtime.vllm_adapter import engine_configuration, serving
from posenc_runtime.vllm_adapter.checkpoint.sizing import cpu_memory
from posenc_runtime.vllm_adapter.settings.plan import PLANNED_FROM, Plan, plan_of
from tests.checkpoints import save_tiny


@pytest.fixture(autouse=True)
def configured_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of vLLM's is made: for a new architecture that takes seconds, in a process of its own.

    ``test_check_engine.py`` makes them.
    """

    def configure(engine_args: Any, make: Any, *, serves: bool, planned: Plan | None = None) -> Any:
        plan = planned or plan_of({name: getattr(engine_args, name) for name in PLANNED_FROM})
        engine_configuration._with_all_they_need(engine_args, plan)
        cache = types.SimpleNamespace(block_size=engine_args.block_size)
        return plan, types.SimpleNamespace(model_config=None, cache_config=cache)

    monkeypatch.setattr(engine_configuration, "configure", configure)
    monkeypatch.setattr(serving, "_read_beside_weights", lambda model_config: None)


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much memory is free on the machine of the tests decides nothing."""
    monkeypatch.setattr(cpu_memory, "of_nodes", list)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))
