"""vLLM's API server gets our plugin, or does not start."""

from __future__ import annotations

from typing import Any

import pytest

from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_server.endpoints import with_ours


def test_a_server_that_generates_gets_our_plugin_beside_those_that_vllm_finds() -> None:
    found: list[Any] = ["another"]
    another, ours = with_ours(lambda tasks: found)(("generate", "transcription"))
    assert (another, ours.name) == ("another", "posenc")


@pytest.mark.parametrize("tasks", [("transcription",), ("embed",), (), None])
def test_a_server_that_our_plugin_does_not_fit_does_not_start_without_its_checks(tasks: Any) -> None:
    with pytest.raises(Unsupported, match="posenc serves models for the tasks generate, got a server for"):
        with_ours(lambda tasks: [])(tasks)
