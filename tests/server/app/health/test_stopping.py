"""vLLM's own HTTP server, without an engine, is told to stop: in a process of its own, by real signals."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.benchmarks.servers import free_port

pytestmark = pytest.mark.slow

# An engine whose requests end when a file is there.
SERVER = """
    import argparse, asyncio, pathlib, sys, types
    from fastapi import FastAPI
    from vllm.entrypoints.launchers.launcher import serve_http
    from posenc_runtime.vllm_adapter.in_server.engine_state import Capacity
    from posenc_runtime.vllm_adapter.in_server.stopping import Draining
    from posenc_runtime.vllm_adapter.in_server.stopping import bound_last_answers, drain_before_stop
    from posenc_runtime.vllm_adapter.settings.front_end import LimitSettings
    from server.app.edge.limits import LimitsMiddleware
    from server.app.health.probes import probes_router
    from server.app.health.refusing import RefusingWhileDraining
    from server.app.health.state import Health

    port, seconds, go, dies = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4] == "dies"

    class Engine:
        def __init__(self):
            self.errored, self.is_running = False, True
            self.vllm_config = types.SimpleNamespace(shutdown_timeout=seconds)
            self.output_processor = types.SimpleNamespace(request_states={}, abort_requests=lambda *_, **__: [])

        def shutdown(self, timeout=None):
            print("engine stopped", flush=True)

        async def add_request(self):
            pass

        async def abort(self, names, internal):
            self.output_processor.request_states.clear()

    async def main():
        engine, app, draining = Engine(), FastAPI(), Draining()
        app.state.engine_client = engine
        app.add_middleware(LimitsMiddleware, limits=LimitSettings(), capacity=Capacity, refused=print)
        app.add_middleware(RefusingWhileDraining, draining=draining)
        app.include_router(probes_router())

        @app.post("/v1/completions")
        async def complete():
            state = types.SimpleNamespace(is_prefilling=False, queue=None)
            engine.output_processor.request_states["one"] = state
            while not go.exists() and "one" in engine.output_processor.request_states:
                await asyncio.sleep(0.02)
            return "whole" if engine.output_processor.request_states.pop("one", None) else "abort"

        drain_before_stop(engine, draining, lambda by_itself: print(f"ended by itself: {by_itself}", flush=True))
        pulse = types.SimpleNamespace(unanswered_seconds=0.0, sleeps=False)
        app.state.posenc_health = Health(engine, draining, pulse, 30.0)
        serving = asyncio.create_task(
            serve_http(app, None, host="127.0.0.1", port=port, log_level="warning", timeout_keep_alive=75)
        )
        while not getattr(getattr(app.state, "server", None), "started", False):
            await asyncio.sleep(0.02)
        bound_last_answers(app.state.server)
        if dies:
            engine.errored, engine.is_running = True, False
        stopped = await serving
        engine.shutdown(timeout=seconds)  # as vLLM's context of an engine does
        await stopped

    asyncio.run(main())
"""


class Started:
    """A server, and a request that it answers."""

    def __init__(self, folder: pathlib.Path, seconds: int, how: str = "lives") -> None:
        script, self.go, port = folder / "stub.py", folder / "go", free_port()
        script.write_text(textwrap.dedent(SERVER))
        self.address = f"http://127.0.0.1:{port}"
        environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[4]), "VLLM_LOGGING_LEVEL": "ERROR"}
        command = [sys.executable, str(script), str(port), str(seconds), str(self.go), how]
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def wait_until_live(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.said()
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.address}/health/live", timeout=5).status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError("it did not start")

    def wait_until_it_drains(self) -> None:
        while httpx.get(f"{self.address}/health/ready", timeout=30).status_code == 200:
            time.sleep(0.02)

    def complete(self) -> httpx.Response:
        return httpx.post(f"{self.address}/v1/completions", timeout=60)

    def connected(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", int(self.address.rpartition(":")[2])))
        client.settimeout(60)
        return client

    def said(self) -> str:
        return self._log.read_text()


@contextlib.contextmanager
def started(folder: pathlib.Path, seconds: int) -> Iterator[Started]:
    server = Started(folder, seconds)
    try:
        server.wait_until_live()
        yield server
    finally:
        server.process.kill()


def test_it_drains_refuses_new_requests_and_ends_with_0(tmp_path: pathlib.Path) -> None:
    with started(tmp_path, 600) as server, ThreadPoolExecutor() as pool:
        running = pool.submit(server.complete)
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        server.wait_until_it_drains()
        refused = server.complete()
        assert refused.status_code == 503 and "retry-after" in refused.headers
        assert httpx.get(f"{server.address}/health/live", timeout=30).status_code == 200
        assert not running.done()
        server.go.touch()
        assert running.result().json() == "whole"
        assert server.process.wait(timeout=60) == 0
        assert server.said().endswith("ended by itself: False\nengine stopped\nengine stopped\n")


def test_a_second_signal_ends_the_wait(tmp_path: pathlib.Path) -> None:
    with started(tmp_path, 600) as server, ThreadPoolExecutor() as pool:
        running = pool.submit(server.complete)
        time.sleep(0.5)
        server.process.send_signal(signal.SIGINT)
        server.wait_until_it_drains()
        server.process.send_signal(signal.SIGINT)
        assert running.result().json() == "abort"
        assert server.process.wait(timeout=60) == 0


def test_a_client_that_still_sends_its_request_when_the_engine_stops_may_try_again(tmp_path: pathlib.Path) -> None:
    with started(tmp_path, 1) as server, server.connected() as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: 10\r\n" in head.lower()
        assert json.loads(body)["error"]["code"] == 503
        assert server.process.wait(timeout=60) == 0
        assert "Traceback" not in server.said()


def test_a_server_whose_engine_ends_by_itself_ends_with_1(tmp_path: pathlib.Path) -> None:
    server = Started(tmp_path, 600, "dies")
    try:
        assert server.process.wait(timeout=180) == 1
        said = "ended by itself: True\nengine stopped\nthe engine ended while it served: the cause is above\n"
        assert said in server.said()
    finally:
        server.process.kill()
