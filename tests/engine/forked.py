"""A module run in a process of its own, forked from one that has imported vLLM, which takes longer than a tiny engine.

Of vLLM nothing has run there but its imports: every engine has a fresh process, and an environment of its own. What has
to come before those imports is run by an interpreter of its own.

A process that is forked from one that has started CUDA cannot use the GPU. The imports do not start it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import runpy
import subprocess
import sys
from collections.abc import Mapping

import torch

_ROOT = pathlib.Path(__file__).parents[2]
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tests.engine.imported"])


def run(
    module: str, argument: str, *, environment: Mapping[str, str], imported: bool, log: pathlib.Path, timeout: float
) -> None:
    """As ``python -m module argument`` would, output into ``log``, until it ends.

    Args:
        imported: whether vLLM may be there already.

    Raises:
        TimeoutError: when it has not after ``timeout`` seconds; it is killed then.
    """
    ended = _forked if imported else _alone
    if not ended(module, argument, environment, log, timeout):
        raise TimeoutError(f"{module} has not ended after {timeout:g} s")


def _alone(module: str, argument: str, environment: Mapping[str, str], log: pathlib.Path, timeout: float) -> bool:
    """In an interpreter that has this environment from its first import on: some read it then, and never again."""
    with open(log, "wb") as stream:
        try:
            subprocess.run(
                [sys.executable, "-m", module, argument],
                env=environment,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            return False
    return True


def _forked(module: str, argument: str, environment: Mapping[str, str], log: pathlib.Path, timeout: float) -> bool:
    with contextlib.chdir(_ROOT):  # the fork server imports from there, and says nothing when it cannot
        multiprocessing.forkserver.ensure_running()
    process = _FORKED.Process(target=_run, args=(module, argument, dict(environment), str(log)))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        return False
    return True


def _run(module: str, argument: str, environment: dict[str, str], log: str) -> None:
    with open(log, "wb") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    from torch._inductor import config as inductor  # vLLM has imported it here; pytest's process does not need it

    # OpenMP and Inductor have read their variables when they were imported.
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", torch.get_num_threads())))
    inductor.deterministic = environment.get("TORCHINDUCTOR_DETERMINISTIC") == "1"
    sys.argv = [module, argument]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
