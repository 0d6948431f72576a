"""Kernels on a GPU, as shares of its bandwidth and in turns with vLLM's: ``python -m tests.benchmarks.gpu``."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from tests.benchmarks.gpu import device, output, peers, report, worker
from tests.benchmarks.gpu.report import Run
from tests.benchmarks.gpu.rows import Row, State
from tests.benchmarks.gpu.trial import Trial
from tests.benchmarks.gpu.trials import SUBJECTS, trials

_ROUNDS, _WARM_UPS = 30, 3
_REHEARSED_ROUNDS, _REHEARSED_WARM_UPS = 2, 1


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(SUBJECTS)}; may be repeated.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Measured rounds of a trial.")] = None,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that all of it may take.")] = 450.0,
    trial_limit: Annotated[float, typer.Option(min=1, help="Seconds that one trial may take.")] = 150.0,
    need_vllm: Annotated[
        bool, typer.Option("--need-vllm", help="Refuse to start where vLLM's compiled operators are missing.")
    ] = False,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Run all of it at tiny shapes on the CPU.")] = False,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Where the result goes: OUT.json and OUT.md. A date and the device when left out."),
    ] = None,
) -> None:
    """Measure every kernel on a GPU, and say which targets are reached.

    Without a large one, list what would be measured, and why it is not. Ends with 1 if anything failed; a target that
    is missed is a result.
    """
    if need_vllm and (lacking := peers.missing()) is not None:
        output.tell(lacking)
        raise typer.Exit(1)
    subjects = only or SUBJECTS
    output.refuse_unknown(subjects, SUBJECTS)
    sizes = worker.sizes_of(rehearse)
    asked = [trial for trial in trials(sizes) if trial.subject in subjects]
    why = None if rehearse else device.missing()
    if why is not None:
        rows = [row.skipped(why) for trial in asked for row in trial.rows]
        output.say(report.not_measured(rows))
        return
    facts = {} if rehearse else _facts()
    run = Run(sizes, rounds or (_REHEARSED_ROUNDS if rehearse else _ROUNDS), rehearse, facts)
    with output.place(out, "kernels", is_rehearsal=rehearse) as place:
        rows = _measure(asked, run, place, _REHEARSED_WARM_UPS if rehearse else _WARM_UPS, limit, trial_limit)
        if not rehearse:
            run.facts.update(_at_the_moment("after"))
        files = report.write(place, run, rows)
        output.say([report.table(rows).as_markdown(), *report.remarks(run, rows)])
        if place == out or not rehearse:
            output.say([f"wrote {file}" for file in files])
    if any(row.state == State.failed for row in rows):
        raise typer.Exit(1)


def _measure(
    asked: Sequence[Trial], run: Run, place: pathlib.Path, warm_ups: int, limit: float, trial_limit: float
) -> list[Row]:
    """All rows, written whenever some have come: what is there is kept if the run is ended from outside."""
    found = {trial.name: trial.rows for trial in asked}
    began = time.monotonic()
    clocks: dict[str, None] = {}

    def tell(name: str, rows: tuple[Row, ...] | None) -> None:
        said = [f"{name} ..."]
        if rows is not None:
            found[name] = rows
            clocks.update({row.sm_clock: None for row in rows if row.sm_clock})
            if clocks:
                run.facts["SM clock after rounds"] = ", ".join(clocks)
            report.write(place, run, [row for rows in found.values() for row in rows])
            said = [f"    {report.in_a_line(row)}" for row in rows]
        for line in said:
            output.tell(f"{time.monotonic() - began:5.0f} s  {line}")

    worker.run(
        asked,
        tell,
        is_rehearsal=run.is_rehearsal,
        rounds=run.rounds,
        warm_ups=warm_ups,
        limit=limit,
        trial_limit=trial_limit,
    )
    return [row for rows in found.values() for row in rows]


def _facts() -> dict[str, str]:
    looked_at = device.looked_at()
    fixed = {name: looked_at[name] for name in device.FIXED if name in looked_at}
    return {"GPU": device.name()} | fixed | _at_the_moment("before")


def _at_the_moment(when: str) -> dict[str, str]:
    """What changes, but for the clock that falls as soon as nothing runs: trials look at it themselves."""
    left_out = (*device.FIXED, "SM clock")
    return {f"{name} {when}": value for name, value in device.looked_at().items() if name not in left_out}


if __name__ == "__main__":
    typer.run(main)
