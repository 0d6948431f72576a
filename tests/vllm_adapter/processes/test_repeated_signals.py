"""The parent of several API servers heeds a second signal: in a process of its own, by real signals."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import IO

import pytest

pytestmark = pytest.mark.slow

# The parent has handlers as vLLM's, which heed one signal. It ends its children by vLLM's function. The API server ends
# at its second signal. The engine is stuck.
PARENT = """
    import multiprocessing, signal, sys, time
    from vllm.v1.utils import shutdown
    from posenc_runtime.vllm_adapter.processes.signals import heed_repeated_signals

    def hear(name, most):
        heard = []

        def handle(*_):
            heard.append(1)
            print(f"{name} hears {len(heard)}", flush=True)

        signal.signal(signal.SIGTERM, handle)
        print(f"{name} runs", flush=True)
        while len(heard) < most:
            time.sleep(0.02)

    def main():
        told = []

        def stock(number, frame):
            if not told:
                told.append(number)
                raise SystemExit

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stock)
        heed_repeated_signals()
        context, children = multiprocessing.get_context("fork"), []
        for name, most in {"ApiServer_0": 2, "EngineCore": 10}.items():
            children.append(context.Process(target=hear, args=(name, most), name=name))
            children[-1].start()
        try:
            time.sleep(600)
        finally:
            for child in children:
                shutdown([child], timeout=600)
            print("ended", flush=True)

    main()
"""


@pytest.fixture
def parent(tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[3]), "VLLM_LOGGING_LEVEL": "ERROR"}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment, process_group=0
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_second_signal_reaches_the_servers_and_a_third_kills_the_engine(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    wait_for(parent.stdout, {"ApiServer_0 runs", "EngineCore runs"})
    parent.send_signal(signal.SIGTERM)
    wait_for(parent.stdout, {"ApiServer_0 hears 1"})
    parent.send_signal(signal.SIGINT)
    wait_for(parent.stdout, {"ApiServer_0 hears 2", "EngineCore hears 1"})
    parent.send_signal(signal.SIGTERM)
    wait_for(parent.stdout, {"ended"})
    assert parent.wait(timeout=60) == 0


def wait_for(output: IO[str], lines: set[str]) -> None:
    """Wait until these lines are said, in any order, and no other."""
    assert {output.readline().rstrip() for _ in lines} == lines
