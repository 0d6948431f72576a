"""The engine on a GPU, alone and in turns with stock vLLM: ``python -m tests.benchmarks.gpu_engine``."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import time
import traceback
from typing import Annotated

import typer

from tests.benchmarks.__main__ import last_core
from tests.benchmarks.engine_process import EngineFailed
from tests.benchmarks.gpu import device, output
from tests.benchmarks.gpu.report import not_measured
from tests.benchmarks.gpu.rows import State
from tests.benchmarks.gpu.trial import described
from tests.benchmarks.gpu_engine import report, served, sides, stepped
from tests.benchmarks.gpu_engine.part import Part, Stage
from tests.benchmarks.gpu_engine.result import Result
from tests.benchmarks.gpu_engine.sizes import TINY, full
from tests.benchmarks.servers import ServerFailed

PARTS = {
    part.name: part for part in (stepped.PART, served.PART, sides.PINNED, sides.READ_TIME, sides.MAY_CROSS, sides.FUSED)
}
# What its users are promised, in less than ten minutes: as much of it as there is time for, in this order.
USUAL = tuple(name for name in PARTS if name not in (sides.MAY_CROSS.name, sides.FUSED.name))


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(PARTS)}; may be repeated.")] = None,
    limit: Annotated[
        float, typer.Option(min=1, help="Seconds after which no part, pair or repetition begins.")
    ] = 540.0,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Run it with a tiny model on the CPU.")] = False,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="Where the result goes: OUT.json and OUT.md, and the engines' logs to OUT-logs. A date and the device "
            "when left out; then no logs are kept."
        ),
    ] = None,
) -> None:
    """Measure what crossings, reused prefixes and scales cost an engine on a GPU, and say which targets are reached.

    Without a large one, list what would be measured, and why it is not. Ends with 1 if anything failed; a target that
    is missed is a result.
    """
    end = time.monotonic() + limit
    names = only or USUAL
    output.refuse_unknown(names, tuple(PARTS))
    sizes = TINY if rehearse else full(device.memory_bytes())
    parts = [PARTS[name] for name in names]
    why = None if rehearse else device.missing()
    if why is not None:
        output.say(not_measured([row.skipped(why) for part in parts for row in part.rows(sizes)]))
        return
    subject = "-".join(["engine", *([] if tuple(names) == USUAL else names)])
    with (
        output.place(out, subject, is_rehearsal=rehearse) as place,
        tempfile.TemporaryDirectory(prefix="posenc-bench-") as name,
    ):
        folder = pathlib.Path(name)
        logs = folder if out is None else out.with_name(f"{out.name}-logs")
        logs.mkdir(parents=True, exist_ok=True)
        cores = [last_core()] if rehearse else []
        model = sizes.save_model(folder / "model")
        stage = Stage(sizes, logs, model, cores, in_one_process=rehearse, is_rehearsal=rehearse, end=end)
        result = Result(parts, sizes, place, is_rehearsal=rehearse)
        for part in parts:
            _measure(part, stage, result, f"the run had its {limit:g} s")
        rows = result.rows
        output.say([report.table(rows).as_markdown(), *report.remarks(rows, sizes, is_rehearsal=rehearse)])
        if place == out or not rehearse:
            output.say([f"wrote {place}.json and {place}.md"])
    if any(row.state == State.failed for row in rows):
        raise typer.Exit(1)


def _measure(part: Part, stage: Stage, result: Result, over: str) -> None:
    """One part. Whatever goes wrong costs it the rows that are not answered yet, and no others.

    Args:
        over: why nothing is measured any more when the stage's time is over.
    """
    why = ""
    if stage.goes_on():
        result.tell(f"{part.name} ...")
        try:
            with contextlib.closing(part.measure(stage)) as found:
                for answers, samples in found:
                    result.take(part, answers, samples)
        except Exception as error:
            traceback.print_exc()
            why = _in_a_line(error)
    left = result.open_rows(part)
    if why and stage.goes_on():
        result.leave(part, [row.failed(why) for row in left])
    else:
        result.leave(part, [row.not_run(f"{over}: {why}" if why else over) for row in left])


def _in_a_line(error: Exception) -> str:
    """Engines and servers that fail say why at the end of their logs."""
    if isinstance(error, EngineFailed | ServerFailed):
        return str(error).strip().splitlines()[-1]
    return described(error)


if __name__ == "__main__":
    typer.run(main)
