"""Engines as on a GPU, forked from a process that has imported vLLM where it finds Triton's interpreter.

multiprocessing has one fork server for a process, and that one has imported a vLLM that found no Triton.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import pathlib
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any


def status(
    module: str, arguments: Sequence[str], *, environment: Mapping[str, str], log: pathlib.Path, timeout: float
) -> int:
    """As ``python -m module arguments`` would end, output added to ``log``.

    Raises:
        TimeoutError: when it has not after ``timeout`` seconds.
    """
    jobs = _server()
    jobs.send((module, list(arguments), dict(environment), str(log)))
    if not jobs.poll(timeout):
        raise TimeoutError(f"{module} has not ended after {timeout:g} s")
    ended: int = jobs.recv()
    return ended


@functools.cache
def _server() -> Connection:
    """Where jobs are sent; each is answered by the status with which its process has ended."""
    ours, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(its,), daemon=True)
    process.start()
    its.close()
    atexit.register(ours.close)
    return ours


def _serve(jobs: Connection) -> None:
    # torch compiles nothing in these engines, and asks when it is imported.
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    from tests.engine.as_on_a_gpu import interpret_triton

    interpret_triton()
    from tests.engine import flash_attention_in_torch

    flash_attention_in_torch.install()
    import tests.engine.imported  # noqa: F401

    with contextlib.suppress(EOFError):
        while True:
            job = jobs.recv()
            if not (child := os.fork()):
                _end(job)
            _, status = os.waitpid(child, 0)
            jobs.send(os.waitstatus_to_exitcode(status))


def _end(job: tuple[Any, ...]) -> None:
    """Run a job, and end this process."""
    from tests.engine import forked

    status = 1
    try:
        forked._run(*job)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
