"""A server that is told to stop while it answers and may not wait, or whose engine is gone."""

from __future__ import annotations

import json
import pathlib
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.benchmarks.servers import ServerFailed
from tests.engine.metrics import total
from tests.engine.running_server import running_server

ASKED: dict[str, Any] = {"model": "tiny", "prompt": "a" * 200, "max_tokens": 1500, "ignore_eos": True}


@pytest.mark.promise("stop")
def test_a_server_that_is_told_to_stop_ends_its_requests_with_their_tokens_so_far(
    tiny: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with (
        running_server(tmp_path, settings(tiny, shutdown_timeout=0), verbose=False) as address,
        httpx.Client(base_url=address, timeout=60) as client,
        ThreadPoolExecutor() as pool,
    ):
        server = process_at(address)
        runs = threading.Event()
        streamed, whole = pool.submit(stream, client, runs), pool.submit(client.post, "/v1/completions", json=ASKED)
        assert runs.wait(timeout=60)
        server.terminate()
        assert psutil.wait_procs([server], timeout=30)[1] == []
        assert streamed.result() == "abort"
        answer = whole.result().json()
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert 0 < answer["usage"]["completion_tokens"] < ASKED["max_tokens"]


def test_a_server_whose_engine_is_gone_refuses_what_it_was_answering_and_ends_with_1(
    tiny: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "log"
    with (
        running_server(tmp_path, settings(tiny), verbose=False, log=log) as address,
        httpx.Client(base_url=address, timeout=60) as client,
        ThreadPoolExecutor() as pool,
    ):
        server = process_at(address)
        asked = pool.submit(client.post, "/v1/completions", json=ASKED)
        while not total(address, "vllm:num_requests_running"):
            assert not asked.done()
        (engine,) = (child for child in server.children() if "EngineCore" in " ".join(child.cmdline()))
        engine.kill()
        answer = asked.result()
        assert answer.status_code == 500 and "message" in answer.json()["error"]
        assert server.wait(timeout=30) == 1
    said = log.read_text()
    assert "failed the engine ended while it served" in said
    assert "Traceback" not in said.rpartition("failed the engine")[2]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.release), signal.SIGTERM])
def test_a_server_that_is_told_to_stop_before_it_is_ready_leaves_nothing_behind(
    number: signal.Signals, tiny: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    engines = []

    def stop() -> None:
        if engines:
            return
        for server in psutil.Process().children():
            engines.extend(child for child in server.children() if "EngineCore" in " ".join(child.cmdline()))
            if engines:
                server.send_signal(number)

    how = rf"(?s)ended with status {128 + number};.*stopped before it was ready\n$"
    with (
        pytest.raises(ServerFailed, match=how),
        running_server(tmp_path, settings(tiny), verbose=False, waiting=stop),
    ):
        pass
    assert psutil.wait_procs(engines, timeout=10)[1] == []


def settings(model: pathlib.Path, **engine: Any) -> dict[str, Any]:
    return {
        "model": str(model),
        "served_model_name": "tiny",
        "scaling": {"rope_type": "yarn", "scales": [1, 2, 4, 8]},
        "engine": {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**28}
        | engine,
    }


def process_at(address: str) -> psutil.Process:
    """The server of this process that listens there."""
    port = address.rpartition(":")[2]
    (server,) = (child for child in psutil.Process().children() if child.cmdline()[-1].endswith(port))
    return server


def stream(client: httpx.Client, runs: threading.Event) -> str | None:
    """Why a streamed answer ended, from its last chunk."""
    reason: str | None = "none was said"
    with client.stream("POST", "/v1/completions", json=ASKED | {"stream": True}) as response:
        chunks = (line.removeprefix("data: ") for line in response.iter_lines() if line)
        for number, chunk in enumerate(chunks):
            if number == 20:
                runs.set()
            if chunk != "[DONE]":
                reason = json.loads(chunk)["choices"][0]["finish_reason"]
    return reason
