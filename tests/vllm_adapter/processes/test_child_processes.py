"""Processes of an engine of ours run our targets first; those of any other engine run vLLM's alone."""

from __future__ import annotations

import functools
import pickle
import socket
import types
from collections.abc import Iterator
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.processes import child_processes
from posenc_runtime.vllm_adapter.processes.child_processes import REPLACED, _owner, install

OURS, OTHERS = {"posenc": {}}, {"mine": {}}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is called in a child, in order; vLLM's targets are replaced by ones that note their call."""
    calls: list[str] = []
    for place, ours in REPLACED.items():
        module, class_name, name = place
        stock = functools.partial(_note, calls, name)
        owner = _owner(module, class_name)
        monkeypatch.setattr(owner, name, staticmethod(stock) if class_name else stock)
        monkeypatch.setitem(child_processes._replaced, ours, stock)
    monkeypatch.setattr(child_processes, "end_with_parent", lambda: calls.append("end with parent"))
    monkeypatch.setattr(child_processes, "leave_process_group", lambda: calls.append("leave group"))
    monkeypatch.setattr(child_processes, "exit_quickly", lambda: calls.append("exit quickly"))
    yield calls


def _note(calls: list[str], name: str, *args: Any, **kwargs: Any) -> None:
    calls.append(name)


@pytest.mark.parametrize("ours", REPLACED.values(), ids=lambda target: target.__name__)
def test_a_target_goes_to_a_new_process_by_its_name(ours: Any) -> None:
    assert pickle.loads(pickle.dumps(ours)) is ours


def test_targets_are_replaced_once(called: list[str]) -> None:
    for _ in range(2):
        install()
    for (module, class_name, name), ours in REPLACED.items():
        assert getattr(_owner(module, class_name), name) is ours
        assert child_processes._replaced[ours] is not ours


@pytest.mark.parametrize(
    ("additional", "before"),
    [(OURS, ["end with parent", "exit quickly"]), (OTHERS, []), (None, [])],
    ids=["ours", "another", "none"],
)
def test_a_worker_of_ours_ends_with_its_parent(additional: Any, before: list[str], called: list[str]) -> None:
    child_processes.run_worker(vllm_config=types.SimpleNamespace(additional_config=additional), rank=0)
    assert called == [*before, "worker_main"]


@pytest.mark.parametrize(("additional", "is_ours"), [(OURS, True), (OTHERS, False)], ids=["ours", "another"])
def test_an_engine_and_an_api_server_leave_the_group_of_the_terminal_too(
    additional: Any, is_ours: bool, called: list[str]
) -> None:
    configured = types.SimpleNamespace(additional_config=additional)
    before = ["end with parent", "leave group", "exit quickly"] if is_ours else []
    child_processes.run_engine_core(vllm_config=configured)
    assert called == [*before, "run_engine_core"]
    called.clear()
    with socket.socket() as listening:
        child_processes.run_api_server("address", listening, configured, {})
    assert called == [*before, "run_api_server_worker_proc"]


def test_an_api_server_that_ends_as_the_last_closes_the_port(called: list[str]) -> None:
    configured = types.SimpleNamespace(additional_config=OURS)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
        child_processes.run_api_server("address", listening, configured, {"api_server_loads": [2**31 - 1] * 2})
        assert client.connect_ex(listening.getsockname())
