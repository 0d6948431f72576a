"""Throughput of our engine over stock vLLM: ``python -m tests.benchmarks``."""

from __future__ import annotations

import contextlib
import enum
import os
import pathlib
import tempfile
from typing import Annotated, Any

import typer
from rich.console import Console

from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.engine_process import EngineFailed, EngineProcess
from tests.benchmarks.progress import progress_bar
from tests.benchmarks.throughput import (
    TARGET,
    Invalid,
    Measured,
    caution,
    idleness,
    measure,
    results_table,
    spread_of_starts,
    verdict,
)
from tests.benchmarks.two_engines import (
    MODEL,
    TINY,
    TRAINED,
    Side,
    cases,
    save_model,
    setup,
    shared_arguments,
    sides,
)

_console = Console(soft_wrap=True)


class Peer(enum.StrEnum):
    """What ours is measured against."""

    stock = "stock"
    pin = "pin"
    unscaled = "unscaled"
    itself = "itself"


def last_core() -> int:
    """The last of the cores that this process may use; the first ones get most of a machine's interrupts."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) - 1


def main(
    pairs: Annotated[int, typer.Option(min=1, help="Measured pairs a case; at least 7 for a result to quote.")] = 9,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Batch size; may be repeated.")] = None,
    decode_tokens: Annotated[int, typer.Option(min=2, max=4000, help="Tokens that a decode case generates.")] = 128,
    prefill_tokens: Annotated[int, typer.Option(min=16, max=4000, help="Prompt tokens of a prefill case.")] = 1024,
    compiled: Annotated[bool, typer.Option("--compiled/--eager", help="Compile the model on both sides.")] = False,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="A model so small that engines do little but their own bookkeeping.")
    ] = False,
    core: Annotated[
        list[int] | None,
        typer.Option(help="Core that computes; may be repeated. The last one when left out."),
    ] = None,
    warm_ups: Annotated[int, typer.Option(min=0, help="Pairs that are run first and not counted.")] = 1,
    starts: Annotated[
        int, typer.Option(min=1, help="Times that both engines are started, each with so many pairs a case.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    against: Annotated[
        Peer,
        typer.Option(
            help="Stock vLLM with static YaRN; ours without crossings; stock vLLM without scaling, for ours with "
            "positions at read time; or stock vLLM against itself."
        ),
    ] = Peer.stock,
    out: Annotated[pathlib.Path | None, typer.Option(help="Write the result to OUT.json and OUT.md.")] = None,
) -> None:
    """Measure the throughput of our engine over stock vLLM with static YaRN at the same largest scale, or over another.

    Both engines are alive at once and take turns; each case reports the median and the quartiles of the ratios of its
    pairs. Missing the target is reported, and is not an error.
    """
    if against == Peer.unscaled and (longest := max(8 + decode_tokens, prefill_tokens + 1)) > TRAINED:
        raise typer.BadParameter(
            f"--against unscaled compares requests of at most {TRAINED} tokens, the trained length, got {longest}: "
            "give smaller --decode-tokens and --prefill-tokens"
        )
    all_cases = cases(batch or [1, 8, 32], decode_tokens=decode_tokens, prefill_tokens=prefill_tokens)
    shape = TINY if tiny else MODEL
    shared = shared_arguments(all_cases, compiled=compiled, model=shape)
    cores = core or [last_core()]
    first, second = sides(against.value, shared)
    results: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="posenc-bench-") as name, progress_bar(_console) as bar:
        folder = pathlib.Path(name)
        starting = bar.add_task("making the model", total=1 + 2 * starts)
        model = save_model(folder / "model", shape)
        bar.advance(starting)
        running = bar.add_task("measuring", total=starts * len(all_cases) * (pairs + warm_ups) * 2)
        try:
            for start in range(starts):
                bar.update(starting, description="starting two engines")
                with contextlib.ExitStack() as stack:
                    ours, peer = _started(stack, (first, second), model, cores, folder, is_reversed=start % 2 == 1)
                    bar.update(starting, advance=2, description="engines started")
                    for case in all_cases:
                        bar.update(running, description=case.name)
                        results[case.name] = measure(
                            case,
                            ours,
                            peer,
                            name_scales=(first.names_scales, second.names_scales),
                            pairs=pairs,
                            warm_ups=warm_ups,
                            seed=seed,
                            advance=lambda: bar.advance(running),
                            before=results.get(case.name),
                        )
        except (EngineFailed, Invalid) as error:
            bar.stop()
            _console.print(f"[bold red]failed[/] {error}", highlight=False)
            raise typer.Exit(1) from None
    measured = list(results.values())
    settings = {"against": against.value, "starts": starts, "model": shape, "both_engines": shared, "cores": cores}
    remarks = [
        setup(all_cases, shared, cores, shape),
        *caution(measured),
        *spread_of_starts(measured),
        idleness(measured),
    ]
    if against == Peer.itself:
        remarks.insert(0, "A control: how far from 1 these ratios are is what the measurement cannot tell apart.")
    else:
        remarks.insert(1, verdict(measured))
    _report(
        results_table(measured, first.name, "itself" if first is second else second.name),
        remarks,
        settings,
        measured,
        out,
    )


def _started(
    stack: contextlib.ExitStack,
    compared: tuple[Side, Side],
    model: pathlib.Path,
    cores: list[int],
    folder: pathlib.Path,
    *,
    is_reversed: bool,
) -> list[EngineProcess]:
    """Both engines, in the order of ``compared``; reversed, the second one is started first."""
    logged = [(side, folder / f"{number}.log") for number, side in enumerate(compared)]
    started = [
        stack.enter_context(EngineProcess(model, side.arguments, worker_cores=cores, plugins=side.plugins, log=log))
        for side, log in (reversed(logged) if is_reversed else logged)
    ]
    return started[::-1] if is_reversed else started


def _report(
    table: Table, remarks: list[str], settings: dict[str, Any], results: list[Measured], out: pathlib.Path | None
) -> None:
    _console.print(table.for_terminal())
    for remark in remarks:
        _console.print(remark, highlight=False)
    if out is None:
        return
    result = settings | {"target": TARGET, "cases": [one.to_json() for one in results], "remarks": remarks}
    markdown = "\n\n".join([f"{table.title}:", table.as_markdown(), *remarks])
    for file in record.write(out, result, record.Provenance.of_this_run("tests.benchmarks"), markdown):
        _console.print(f"wrote {file}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
