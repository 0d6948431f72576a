"""Trials in a process of their own: a kernel that fails takes that process with it, and another one goes on."""

from __future__ import annotations

import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection

import torch

from tests.benchmarks.gpu.rows import Row
from tests.benchmarks.gpu.sizes import FULL, TINY, Sizes
from tests.benchmarks.gpu.timing import DeviceClock, WallClock
from tests.benchmarks.gpu.trial import Stage, Trial, described
from tests.benchmarks.gpu.trials import trials

# (connection, names of trials, is_rehearsal, rounds, warm_ups): sends ``(name, None)`` when a trial begins and
# ``(name, rows)`` when it is over.
Worker = Callable[[Connection, Sequence[str], bool, int, int], None]
Tell = Callable[[str, tuple[Row, ...] | None], None]

_STOP_SECONDS = 10.0
_WARM_SECONDS = 0.3  # of a trial


def sizes_of(is_rehearsal: bool) -> Sizes:
    return TINY if is_rehearsal else FULL


def work(connection: Connection, names: Sequence[str], is_rehearsal: bool, rounds: int, warm_ups: int) -> None:
    """The worker: answers the trials of these names, in their order. Ends early where CUDA answers no more."""
    sizes = sizes_of(is_rehearsal)
    clock = WallClock() if is_rehearsal else DeviceClock(sizes.flush_bytes)
    warm_seconds = 0.0 if is_rehearsal else _WARM_SECONDS
    stage = Stage(torch.device("cpu" if is_rehearsal else "cuda"), clock, sizes, rounds, warm_ups, warm_seconds)
    for trial in trials(sizes):
        if trial.name in names:
            connection.send((trial.name, None))
            connection.send((trial.name, answered(trial, stage)))
            if not is_rehearsal:
                torch.cuda.synchronize()  # raises where a kernel has gone wrong: no later one can run
                gc.collect()  # an error that was caught holds its frames, and they hold the trial's tensors
                torch.cuda.empty_cache()


def answered(trial: Trial, stage: Stage) -> tuple[Row, ...]:
    """A trial's rows, all of them failed where it raised."""
    try:
        return trial.answer(stage)
    except Exception as error:
        traceback.print_exc()
        return tuple(row.failed(described(error)) for row in trial.rows)


def run(
    asked: Iterable[Trial],
    tell: Tell,
    *,
    is_rehearsal: bool,
    rounds: int,
    warm_ups: int,
    limit: float,
    trial_limit: float,
    worker: Worker = work,
) -> None:
    """Answer trials in a worker, and in another one what it left open.

    Args:
        tell: called with a trial's name when it begins, and again with its rows when it is over.
        limit: seconds after which nothing more is measured; what is left open then has failed.
        trial_limit: seconds after which a trial is given up.
    """
    open_trials = {trial.name: trial for trial in asked}
    deadline, over = time.monotonic() + limit, f"the run had its {limit:g} s"
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    while open_trials and time.monotonic() < deadline:
        receives, sends = context.Pipe(duplex=False)
        arguments = (sends, list(open_trials), is_rehearsal, rounds, warm_ups)
        process = context.Process(target=worker, args=arguments, daemon=True)
        process.start()
        sends.close()  # the worker's own end is left, so that its death is seen
        num_open = len(open_trials)
        begun, is_late = _listen(receives, open_trials, tell, deadline, trial_limit)
        process.join(0 if is_late else _STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join(_STOP_SECONDS)
        receives.close()
        # One that ends between two trials has answered the last one. One that never got to any will not get further.
        if begun is None and len(open_trials) == num_open:
            begun = next(iter(open_trials))
        if begun is not None:
            why = f"its process ended (exit code {process.exitcode})"
            if is_late:
                why = over if time.monotonic() >= deadline else f"given up after {trial_limit:g} s"
            trial = open_trials.pop(begun)
            tell(begun, tuple(row.failed(why) for row in trial.rows))
    for name, trial in open_trials.items():
        tell(name, tuple(row.failed(over) for row in trial.rows))


def _listen(
    receives: Connection, open_trials: dict[str, Trial], tell: Tell, deadline: float, trial_limit: float
) -> tuple[str | None, bool]:
    """Until a worker has answered everything, is dead, or takes too long.

    Returns:
        The trial it was at, and whether it took too long.
    """
    begun: str | None = None
    while open_trials:
        if not receives.poll(max(0.0, min(trial_limit, deadline - time.monotonic()))):
            return begun, True
        try:
            name, rows = receives.recv()
        except EOFError:
            return begun, False
        begun = None if rows is not None else name
        if rows is not None:
            del open_trials[name]
        tell(name, rows)
    return None, False
