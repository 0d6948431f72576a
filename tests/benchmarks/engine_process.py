"""An engine in a process of its own, and how busy that process is while it has nothing to do."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import psutil

_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # OpenMP threads sleep between parallel regions and do not spin: an engine that waits must not slow the other.
    "OMP_WAIT_POLICY": "PASSIVE",
}
_ANSWER_SECONDS = 1800.0


class EngineFailed(RuntimeError):
    """The engine did not start, ended early or did not answer; the message is the end of its log, and why last."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """What an engine did with one batch."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    scales: list[float]


class EngineProcess:
    """Start an engine and keep it: a context manager.

    Args:
        arguments: those of ``vllm.LLM``.
        worker_cores: cores that compute; everything else of the engine stays off them where there are others.
        plugins: vLLM's ``VLLM_PLUGINS``; an empty string loads none.
        log: where all of the engine's output goes.
        worker: the module that runs the engine and answers on its stdout.
        in_one_process: scheduler and worker do not run apart, so that a step can be timed from its beginning.
        patience: seconds that the next answer may take, its start included; then the engine is killed.
        idle_patience: seconds that are waited for it to be idle.

    Attributes:
        runs: how vLLM runs it, once it has started.
    """

    runs: dict[str, Any]

    def __init__(
        self,
        model: pathlib.Path,
        arguments: dict[str, Any],
        *,
        worker_cores: Sequence[int],
        plugins: str,
        log: pathlib.Path,
        worker: str = "tests.benchmarks.engine_worker",
        in_one_process: bool = False,
        patience: Callable[[], float] = lambda: _ANSWER_SECONDS,
        idle_patience: float = 15.0,
    ) -> None:
        self._worker = worker
        # A scheduler that is the worker, too, must not be moved off the cores that compute.
        kept_free = [] if in_one_process else list(worker_cores)
        self._job = {"model": str(model), "arguments": arguments, "worker_cores": kept_free}
        self._environment = _ENVIRONMENT | {
            "VLLM_PLUGINS": plugins,
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, worker_cores)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_one_process else "1",
        }
        self._log = log
        self._patience, self._idle_patience = patience, idle_patience
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | self._environment,
            )
        try:
            self.runs = self.ask(self._job)["runs"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        family = self._family()
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # of what an engine that ended has not read
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Workers of an engine that died are on their own.
        for process in psutil.wait_procs(family, timeout=5)[1]:
            process.kill()

    def run(self, prompts: list[list[int]], max_tokens: int) -> Batch:
        """Generate ``max_tokens`` tokens for every prompt.

        Raises:
            EngineFailed: as ``ask``.
        """
        return Batch(**self.ask({"prompts": prompts, "max_tokens": max_tokens}))

    def cpu_seconds(self) -> float:
        """Processor time of the engine's processes since they began."""
        total = 0.0
        for process in self._family():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def wait_until_idle(self, *, at_most: float = 0.05) -> float:
        """Wait until the engine leaves the processor alone; returns the share of a core that it still takes.

        vLLM's workers poll for the next step for a second before they go to sleep.
        """
        deadline = time.monotonic() + self._idle_patience
        while True:
            before, began = self.cpu_seconds(), time.monotonic()
            time.sleep(0.3)
            share = (self.cpu_seconds() - before) / (time.monotonic() - began)
            if share <= at_most or time.monotonic() > deadline:
                return share

    def _family(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send the worker a message and wait for its answer.

        Raises:
            EngineFailed: when the engine ends before it answers, or takes longer than it may.
        """
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        seconds, is_late = self._patience(), threading.Event()
        # Killed, it ends the reading below, and the writing of a message that is longer than the pipe.
        watch = threading.Timer(seconds, self._kill, (is_late,))
        watch.daemon = True
        watch.start()
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watch.cancel()
        if not line:
            late = f"\nthe engine must answer within {seconds:.0f} s and did not: it was killed"
            raise EngineFailed(self._end_of_log() + (late if is_late.is_set() else ""))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _kill(self, is_late: threading.Event) -> None:
        is_late.set()
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _end_of_log(self) -> str:
        log = self._log.read_text(errors="replace")[-6000:]
        return f"the engine ended early; its log ends with\n{log}".rstrip()
