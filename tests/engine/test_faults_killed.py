"""A process of a server is killed: the others end, with an error for whoever waits."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import pytest

from tests.engine.faults import BY_HAND, Asking, Outcome, Victim, completion, record, stream
from tests.engine.running_server import Server, running_server

KILLED = [
    pytest.param("posenc", {}, "server", id="API server"),
    pytest.param("vllm", {"distributed_executor_backend": "mp"}, "Worker", id="worker"),
    pytest.param("posenc", {"distributed_executor_backend": "mp"}, "Worker", id="worker, posenc serve", marks=BY_HAND),
    pytest.param("posenc", {"distributed_executor_backend": "mp"}, "server", id="API server, mp", marks=BY_HAND),
    pytest.param("posenc", {"distributed_executor_backend": "mp"}, "EngineCore", id="engine core, mp", marks=BY_HAND),
    pytest.param("vllm", {}, "EngineCore", id="engine core", marks=BY_HAND),
]


@pytest.mark.parametrize(("by", "engine", "whom"), KILLED)
def test_whoever_is_killed_no_process_stays(
    by: Server, engine: dict[str, Any], whom: str, tiny: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    served = settings(tiny, engine)
    with running_server(tmp_path, served, server=by, verbose=False, log=tmp_path / "log") as address:
        victim = Victim(address)
        streamed, whole = Asking(stream(address, 1500)), Asking(completion(address, 1500))
        assert streamed.runs.wait(timeout=60)
        (victim.server if whom == "server" else victim.named(whom)[0]).kill()
        status, seconds, left = victim.ended()
        saw = f"stream: {streamed.saw()}; answer: {whole.saw()}"
    name = "`posenc serve`" if by == "posenc" else "vLLM with one flag"
    killed = "API server" if whom == "server" else {"Worker": "worker", "EngineCore": "engine core"}[whom]
    workers = ", workers as processes" if engine else ""
    record(Outcome(f"{killed} killed with -9 ({name}{workers})", saw, status, seconds, left))
    assert left == 0
    if whom == "server":
        assert status == -signal.SIGKILL
    else:
        assert status == 1 and "500" in saw


def settings(model: pathlib.Path, engine: dict[str, Any]) -> dict[str, Any]:
    own = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**28}
    return {
        "model": str(model),
        "served_model_name": "tiny",
        "scaling": {"rope_type": "yarn", "scales": [1, 2, 4, 8]},
        "engine": own | engine,
    }
