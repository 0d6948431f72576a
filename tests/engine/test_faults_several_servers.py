"""Several API servers before one engine: they drain, and none of their processes stays."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Iterator

import httpx

from tests.benchmarks.servers import Command, running
from tests.engine import device
from tests.engine.faults import BY_HAND, Asking, Outcome, Victim, record, stream

pytestmark = BY_HAND
SECONDS = 8


@contextlib.contextmanager
def two_servers(model: pathlib.Path, folder: pathlib.Path, seconds: int = SECONDS) -> Iterator[str]:
    section = json.dumps({"posenc": {"rope_type": "yarn", "scales": [1, 2, 4, 8]}})
    flags = [
        *("--model", str(model), "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager"),
        *("--block-size", "32", "--kv-cache-memory-bytes", str(2**28), "--shutdown-timeout", str(seconds)),
        *("--api-server-count", "2", "--additional-config", section, "--port", "{port}"),
    ]
    command = Command((sys.executable, "-m", "tests.engine.several_servers", *flags), device.environment())
    with running(command, log=folder / "log") as address:
        yield address


def test_several_servers_that_are_told_to_stop_drain(tiny: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with two_servers(tiny, tmp_path) as address:
        victim = Victim(address)
        asked = [Asking(stream(address, 200)), Asking(stream(address, 1900)), Asking(stream(address, 1900))]
        assert all(each.runs.wait(timeout=60) for each in asked)
        victim.server.terminate()
        time.sleep(0.5)
        refused = httpx.post(f"{address}/v1/completions", json={"model": "tiny", "prompt": "a"}, timeout=30)
        status, seconds, left = victim.ended()
        saw = f"running: {', '.join(each.saw() for each in asked)}; new: {refused.status_code} with Retry-After"
    record(Outcome(f"SIGTERM under load, 2 API servers, --shutdown-timeout {SECONDS}", saw, status, seconds, left))
    assert saw.startswith("running: 200 ") and refused.headers["retry-after"] == "10"
    assert (status, left) == (0, 0)


def test_a_second_signal_ends_the_wait_of_several_servers(tiny: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with two_servers(tiny, tmp_path, seconds=600) as address:
        victim = Victim(address)
        asked = [Asking(stream(address, 1900)) for _ in range(4)]  # of each server
        assert all(each.runs.wait(timeout=60) for each in asked)
        victim.server.terminate()
        time.sleep(1)  # until both servers drain
        victim.server.terminate()
        status, seconds, left = victim.ended()
        running = [each.saw() for each in asked]
    saw = f"running: {', '.join(running)}"
    record(Outcome("a second SIGTERM under load, 2 API servers, --shutdown-timeout 600", saw, status, seconds, left))
    assert "200 abort" in running and set(running) <= {"200 length", "200 abort"}
    assert (status, left) == (0, 0)


def test_the_parent_of_several_servers_is_killed(tiny: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with two_servers(tiny, tmp_path) as address:
        victim = Victim(address)
        asked = Asking(stream(address, 1900))
        assert asked.runs.wait(timeout=60)
        victim.server.kill()
        status, seconds, left = victim.ended()
    record(Outcome("parent of 2 API servers killed with -9", f"stream: {asked.saw()}", status, seconds, left))
    assert (status, left) == (-9, 0)
