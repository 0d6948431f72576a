"""A server that is told to stop while it answers."""

from __future__ import annotations

import json
import pathlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil

from tests.engine.running_server import running_server

ASKED: dict[str, Any] = {"model": "tiny", "prompt": "a" * 200, "max_tokens": 1500, "ignore_eos": True}


def test_a_server_that_is_told_to_stop_ends_its_requests_with_what_they_have_said_and_is_gone(
    tiny: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    settings = {
        "model": str(tiny),
        "served_model_name": "tiny",
        "scaling": {"rope_type": "yarn", "scales": [1, 2, 4, 8]},
        "engine": {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**28},
    }
    with (
        running_server(tmp_path, settings, verbose=False) as address,
        httpx.Client(base_url=address, timeout=60) as client,
        ThreadPoolExecutor() as pool,
    ):
        port = address.rpartition(":")[2]
        (server,) = (child for child in psutil.Process().children() if child.cmdline()[-1].endswith(port))
        runs = threading.Event()
        streamed, whole = pool.submit(stream, client, runs), pool.submit(client.post, "/v1/completions", json=ASKED)
        assert runs.wait(timeout=60)
        server.terminate()
        assert psutil.wait_procs([server], timeout=30)[1] == []
        assert streamed.result() == "abort"
        answer = whole.result().json()
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert 0 < answer["usage"]["completion_tokens"] < ASKED["max_tokens"]


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
