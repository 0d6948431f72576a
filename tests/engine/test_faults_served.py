"""A server that is frozen, short of blocks, without its model's folder, and at last told to stop."""

from __future__ import annotations

import pathlib
import shutil
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.engine.faults import IS_BY_HAND, Asking, Outcome, Victim, completion, probe, record, stream, until
from tests.engine.metrics import total
from tests.engine.running_server import running_server

STALLED_SECONDS, FROZEN_SECONDS = 3, 20 if IS_BY_HAND else 5
DRAIN_SECONDS = 6


@pytest.fixture(scope="module")
def model(tiny: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(tiny, tmp_path_factory.mktemp("copy") / "model"))


@pytest.fixture(scope="module")
def victim(model: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Victim]]:
    """A server with room for the blocks of one long request and a half."""
    settings = {
        "model": str(model),
        "served_model_name": "tiny",
        "scaling": {"rope_type": "yarn", "scales": [1, 2, 4, 8]},
        "engine": {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "num_gpu_blocks_override": 96,
            "kv_cache_memory_bytes": 2**28,
            "shutdown_timeout": DRAIN_SECONDS,
        },
        "health": {"stalled_seconds": STALLED_SECONDS},
    }
    with running_server(tmp_path_factory.mktemp("served"), settings, verbose=False) as address:
        yield address, Victim(address)


def test_a_server_that_serves_is_live_and_ready_and_generates(victim: tuple[str, Victim]) -> None:
    address, _ = victim
    assert Asking(completion(address, 5)).saw() == "200 length"
    # The first request with logprobs compiles a function of vLLM, which takes longer than an engine may stall here.
    until(lambda: probe(address, "/health/generate") == (200, ""))
    for route in ("/health/live", "/health/ready", "/health/generate", "/health", "/ping"):
        assert probe(address, route) == (200, "")
    until(lambda: total(address, "posenc_ready") == 1)


def test_a_frozen_engine_is_not_ready_until_it_goes_on_and_clients_get_whole_answers(
    victim: tuple[str, Victim],
) -> None:
    address, processes = victim
    (engine,) = processes.named("EngineCore")
    streamed = Asking(stream(address, 1000))
    assert streamed.runs.wait(timeout=60)
    engine.suspend()
    frozen = time.monotonic()
    try:
        until(lambda: probe(address)[0] == 503)
        status, reason = probe(address)
        assert status == 503 and "has not answered for" in reason
        assert probe(address, "/health")[0] == probe(address, "/health/generate")[0] == 503
        assert probe(address, "/health/live") == (200, "")
        until(lambda: total(address, "posenc_ready") == 0)  # which is shown twice a second
        late = Asking(completion(address, 5))
        time.sleep(max(FROZEN_SECONDS - (time.monotonic() - frozen), 0))
    finally:
        engine.resume()
    seconds = until(lambda: probe(address)[0] == 200)
    saw = f"stream: {streamed.saw()}; answer: {late.saw()}; readiness: 503, then 200"
    record(Outcome(f"engine core frozen (SIGSTOP) for {FROZEN_SECONDS} s", saw, None, seconds, 0))
    assert saw == "stream: 200 length; answer: 200 length; readiness: 503, then 200"


def test_requests_that_have_no_blocks_wait_for_them(victim: tuple[str, Victim]) -> None:
    address, _ = victim
    before = total(address, "vllm:num_preemptions_total")
    began = time.monotonic()
    saw = [each.saw() for each in [Asking(completion(address, 1200)) for _ in range(4)]]
    num_preemptions = int(total(address, "vllm:num_preemptions_total") - before)
    told = f"4 answers: {', '.join(sorted(set(saw)))}, after {num_preemptions} preemptions"
    record(Outcome("out of KV blocks", told, None, round(time.monotonic() - began, 1), 0))
    assert set(saw) == {"200 length"} and num_preemptions


def test_a_running_server_does_not_need_the_folder_of_its_model(
    victim: tuple[str, Victim], model: pathlib.Path
) -> None:
    address, _ = victim
    shutil.rmtree(model)
    saw = Asking(completion(address, 5)).saw()
    record(Outcome("folder of the model deleted while it serves", saw, None, 0, 0))
    assert saw == "200 length" and probe(address, "/health/generate") == (200, "")


def test_a_server_that_is_told_to_stop_drains_and_refuses_what_comes(victim: tuple[str, Victim]) -> None:
    address, processes = victim
    short, long, whole = (
        Asking(stream(address, 300)),
        Asking(stream(address, 1900)),
        Asking(completion(address, 1900)),
    )
    assert short.runs.wait(timeout=60) and long.runs.wait(timeout=60)
    processes.server.terminate()
    until(lambda: probe(address)[0] == 503)
    assert probe(address) == probe(address, "/health") == (503, "the server is shutting down")
    assert probe(address, "/health/live") == (200, "")
    refused = httpx.post(f"{address}/v1/completions", json={"model": "tiny", "prompt": "a", "stream": True})
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["type"] == "Service Unavailable"
    status, seconds, left = processes.ended()
    running = [short.saw(), long.saw(), whole.saw()]
    saw = f"running: {', '.join(running)}; new: {refused.status_code} with Retry-After"
    record(Outcome(f"SIGTERM under load, engine.shutdown_timeout {DRAIN_SECONDS}", saw, status, seconds, left))
    assert set(running) <= {"200 length", "200 abort"}  # by how fast the machine is
    assert (status, left) == (0, 0)
