"""Each command reads the checkpoint, completes the settings and makes the engine's configuration once."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.entrypoints.cli.serve import ServeSubcommand

from posenc_runtime.vllm_adapter.settings import plan
from server.start_up import starting
from tests.server.command import SCALING, run


@pytest.fixture(autouse=True)
def configured_engine() -> None:
    """vLLM's configuration is made."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    calls: Counter[str] = Counter()

    def counting(name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return stock(*given, **named)

        return call

    monkeypatch.setattr(plan, "read_checkpoint", counting("reads", plan.read_checkpoint))
    monkeypatch.setattr(plan, "complete", counting("completions", plan.complete))
    monkeypatch.setattr(VllmConfig, "__post_init__", counting("constructions", VllmConfig.__post_init__))
    return calls


@pytest.mark.parametrize(("command", "constructions"), [("check", 1), ("flags", 0), ("size", 0)])
def test_a_command_reads_completes_and_constructs_once(
    command: str, constructions: int, counted: Counter[str], model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    status, _, err = run(tmp_path, {"model": str(model), "scaling": SCALING}, command)
    assert (status, err) == (0, "")
    assert counted == Counter(reads=1, completions=1, constructions=constructions)


def test_serving_reads_completes_and_constructs_once(
    counted: Counter[str], model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to where vLLM starts the engine's process, which gets the configuration."""

    def started(args: Any) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs

        AsyncEngineArgs.from_cli_args(args).create_engine_config()

    def left(*_: Any) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(ServeSubcommand, "cmd", started)
    monkeypatch.setattr(starting, "show_ours", lambda _: None)  # its handler would write to this test's closed output
    monkeypatch.setattr(starting, "_leave", left)
    settings = {"model": str(model), "scaling": SCALING, "engine": {"kv_cache_memory_bytes": 2**28}}
    run(tmp_path, settings | {"server": {"port": 0}}, "serve")
    assert counted == Counter(reads=1, completions=1, constructions=1)
