"""A process ends with the one that started it, whatever thread of it did, and not before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="on Linux only: the kernel there ends the process"),
]

STARTER = """
    import multiprocessing, sys, threading, time
    from posenc_runtime.vllm_adapter.processes.ending import end_with_parent

    def child(pipe):
        end_with_parent()
        pipe.send(None)
        time.sleep(600)

    def start(context):
        here, there = context.Pipe()
        context.Process(target=child, args=(there,), daemon=True).start()
        here.recv()

    if __name__ == "__main__":
        method, thread = sys.argv[1:]
        context = multiprocessing.get_context(method)
        if thread == "main":
            start(context)
        else:
            starting = threading.Thread(target=start, args=(context,))
            starting.start()
            starting.join()
        print("started", flush=True)
        time.sleep(600)
"""


@pytest.fixture(params=[("spawn", "main"), ("spawn", "other"), ("fork", "main"), ("forkserver", "main")], ids=str)
def starter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[psutil.Process]:
    """A process that has started another one."""
    script = tmp_path / "starter.py"
    script.write_text(textwrap.dedent(STARTER))
    command = [sys.executable, str(script), *request.param]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        yield psutil.Process(process.pid)
        process.kill()


def test_a_process_ends_when_its_parent_is_killed_and_not_when_a_thread_ends(starter: psutil.Process) -> None:
    children = starter.children(recursive=True)
    assert psutil.wait_procs(children, timeout=2)[0] == []
    starter.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_process_that_multiprocessing_did_not_start_is_left_alone() -> None:
    code = (
        "import subprocess, sys\n"
        "from posenc_runtime.vllm_adapter.processes import ending\n"
        "ending.ctypes = None  # it would be asked for prctl\n"
        "ending.end_with_parent()\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
