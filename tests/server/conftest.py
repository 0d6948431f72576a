from __future__ import annotations

import pathlib

import pytest

# The commands import vLLM as they need it; see there why it is imported before.
import tests.vllm_adapter.conftest  # noqa: F401
from posenc_runtime.vllm_adapter import serving
from tests.checkpoints import save_tiny


@pytest.fixture(autouse=True)
def configured_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of vLLM's is made: for a new architecture that takes seconds, in a process of its own.

    ``test_check_engine.py`` makes them.
    """
    monkeypatch.setattr(serving, "engine_configuration", lambda args: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))
