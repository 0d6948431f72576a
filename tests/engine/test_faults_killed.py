"""A process of a server is killed: the others end, with an error for whoever waits."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import pytest

from tests.engine.faults import BY_HAND, Asking, Outcome, Victim, completion, record, stream
from tests.engine.running_server import Server, running_server

KILLED = [
    pytest.param("posenc", "API server", id="API server"),
    pytest.param("vllm", "worker", id="worker"),
    pytest.param("posenc", "worker", id="worker, posenc serve", marks=BY_HAND),
    pytest.param("posenc", "engine core", id="engine core, posenc serve", marks=BY_HAND),
    pytest.param("vllm", "engine core", id="engine core", marks=BY_HAND),
    pytest.param("vllm", "API server", id="API server of vLLM", marks=BY_HAND),
]
COMMANDS = {"posenc": "`posenc serve`", "vllm": "vLLM with one flag"}
TITLES = {"worker": "Worker", "engine core": "EngineCore"}


@pytest.mark.parametrize(("by", "whom"), KILLED)
def test_whoever_is_killed_no_process_stays(by: Server, whom: str, tiny: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with running_server(tmp_path, settings(tiny), server=by, verbose=False, log=tmp_path / "log") as address:
        victim = Victim(address)
        streamed, whole = Asking(stream(address, 1500)), Asking(completion(address, 1500))
        assert streamed.runs.wait(timeout=60)
        (victim.named(TITLES[whom])[0] if whom in TITLES else victim.server).kill()
        status, seconds, left = victim.ended()
        saw = f"stream: {streamed.saw()}; answer: {whole.saw()}"
    record(Outcome(f"{whom} killed with -9 ({COMMANDS[by]})", saw, status, seconds, left))
    assert left == 0
    if whom == "API server":
        assert status == -signal.SIGKILL
    else:
        assert status == 1 and "500" in saw


def settings(model: pathlib.Path) -> dict[str, Any]:
    """A server whose worker has a process of its own, as with several devices."""
    return {
        "model": str(model),
        "served_model_name": "tiny",
        "scaling": {"rope_type": "yarn", "scales": [1, 2, 4, 8]},
        "engine": {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "kv_cache_memory_bytes": 2**28,
            "distributed_executor_backend": "mp",
        },
    }
