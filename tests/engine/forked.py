"""A module run in a process of its own, forked from one that has imported vLLM, which takes longer than a tiny engine.

Of vLLM nothing has run there but its imports: every engine has a fresh process, and an environment of its own. What has
to come before those imports has a fork server of its own, ``forked_for_triton``.

A process that is forked from one that has started CUDA cannot use the GPU. The imports do not start it.

Servers are forked, too, where nobody looks at their processes: each would import it all three times.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess

import torch

from tests.engine.device import ON_CUDA

_ROOT = pathlib.Path(__file__).parents[2]
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tests.engine.imported"])


def status(
    module: str, arguments: Sequence[str], *, environment: Mapping[str, str], log: pathlib.Path, timeout: float
) -> int:
    """As ``python -m module arguments`` would end, output added to ``log``.

    Raises:
        TimeoutError: when it has not after ``timeout`` seconds; it is killed then.
    """
    process = _started(_run, module, arguments, environment, log)
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"{module} has not ended after {timeout:g} s")
    return process.exitcode


def _started(
    target: Callable[..., None],
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: pathlib.Path,
) -> BaseProcess:
    with contextlib.chdir(_ROOT):  # the fork server imports from there, and says nothing when it cannot
        multiprocessing.forkserver.ensure_running()
    process = _FORKED.Process(target=target, args=(module, list(arguments), dict(environment), str(log)))
    process.start()
    return process


def _run(module: str, arguments: list[str], environment: dict[str, str], log: str) -> None:
    with open(log, "ab") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    from torch._inductor import config as inductor  # vLLM has imported it here; pytest's process does not need it

    # OpenMP and Inductor have read their variables when they were imported.
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", torch.get_num_threads())))
    inductor.deterministic = environment.get("TORCHINDUCTOR_DETERMINISTIC") == "1"
    if not ON_CUDA:
        # vLLM on CPUs spawns the processes of an engine, whatever it is told.
        context = multiprocessing.get_context
        multiprocessing.get_context = lambda method=None: context("fork" if method == "spawn" else method)  # type: ignore
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class ForkedServer:
    """A server of whom one sees what ``subprocess.Popen`` shows; it and its processes are of a group of their own.

    Args:
        module: run as ``python -m module`` would be.
        log: a file that its output is added to.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: pathlib.Path
    ) -> None:
        self._process = _started(_serve, module, arguments, environment, log)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _serve(module: str, arguments: list[str], environment: dict[str, str], log: str) -> None:
    os.setpgid(0, 0)
    gc.collect = lambda generation=2: 0  # at its end it would look through all that is imported
    _run(module, arguments, environment, log)
