"""The engine on an H200, alone and in turns with stock vLLM: ``python -m tests.benchmarks.gpu_engine``."""

from __future__ import annotations

import pathlib
import tempfile
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tests.benchmarks.__main__ import last_core
from tests.benchmarks.engine_process import EngineFailed
from tests.benchmarks.gpu import device, output
from tests.benchmarks.gpu.report import not_measured
from tests.benchmarks.gpu.rows import Row, State
from tests.benchmarks.gpu_engine import report, served, sides, stepped
from tests.benchmarks.gpu_engine.part import Part, Stage
from tests.benchmarks.gpu_engine.sizes import H200, TINY, Sizes

PARTS = {part.name: part for part in (stepped.PART, served.PART, sides.PINNED, sides.MAY_CROSS, sides.FUSED)}
# What its users are promised, in less than ten minutes.
USUAL = tuple(name for name in PARTS if name not in (sides.MAY_CROSS.name, sides.FUSED.name))


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(PARTS)}; may be repeated.")] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Run it with a tiny model on the CPU.")] = False,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Where the result goes: OUT.json and OUT.md. A date and the device when left out."),
    ] = None,
) -> None:
    """Measure what crossings, reused prefixes and scales cost an engine on an H200, and say which targets are reached.

    Without one, list what would be measured, and why it is not. Ends with 1 if anything failed; a target that is missed
    is a result.
    """
    names = only or USUAL
    output.refuse_unknown(names, tuple(PARTS))
    sizes = TINY if rehearse else H200
    parts = [PARTS[name] for name in names]
    why = None if rehearse else device.missing()
    if why is not None:
        output.say(not_measured([row.skipped(why) for part in parts for row in part.rows(sizes)]))
        return
    subject = "-".join(["engine", *([] if tuple(names) == USUAL else names)])
    with output.place(out, subject, is_rehearsal=rehearse) as place:
        rows = _measure(parts, sizes, place, is_rehearsal=rehearse)
        output.say([report.table(rows).as_markdown(), *report.remarks(rows, sizes, is_rehearsal=rehearse)])
        if place == out or not rehearse:
            output.say([f"wrote {place}.json and {place}.md"])
    if any(row.state == State.failed for row in rows):
        raise typer.Exit(1)


def _measure(parts: Sequence[Part], sizes: Sizes, place: pathlib.Path, *, is_rehearsal: bool) -> list[Row]:
    """All rows, written after every part: what is there is kept if the run is ended from outside."""
    found = {part.name: part.rows(sizes) for part in parts}
    facts = {} if is_rehearsal else {"GPU": device.name()} | device.looked_at()
    samples: dict[str, Any] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="posenc-bench-") as name:
        folder = pathlib.Path(name)
        model = sizes.save_model(folder / "model")
        cores = [last_core()] if is_rehearsal else []
        stage = Stage(sizes, folder, model, cores, in_one_process=is_rehearsal, is_rehearsal=is_rehearsal)
        for part in parts:
            output.tell(f"{time.monotonic() - began:5.0f} s  {part.name} ...")
            try:
                found[part.name], samples[part.name] = part.measure(stage)
            except EngineFailed as error:
                output.tell(str(error))
                last = str(error).strip().splitlines()[-1]
                found[part.name] = [row.failed(last) for row in found[part.name]]
            for row in found[part.name]:
                output.tell(f"         {report.in_a_line(row)}")
            if not is_rehearsal:
                facts |= {f"SM clock after {part.name}": device.looked_at().get("SM clock", "unknown")}
            rows = [row for some in found.values() for row in some]
            report.write(place, rows, sizes, samples, facts, is_rehearsal=is_rehearsal)
    return rows


if __name__ == "__main__":
    typer.run(main)
