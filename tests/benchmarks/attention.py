"""Time of a layer's attention on the CPU, ours over vLLM's: ``python -m tests.benchmarks.attention``."""

from __future__ import annotations

import enum
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
import typer
from rich.console import Console

from posenc_runtime.kernels.cpu.build import NoCompiler
from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.attention_check import Wrong, check
from tests.benchmarks.attention_kernels import kernels_of
from tests.benchmarks.attention_picture import draw
from tests.benchmarks.attention_rivals import NPOS, TOLERANCE, WINDOWED, rivals
from tests.benchmarks.attention_step import Layer, Step, Work
from tests.benchmarks.attention_targets import verdicts
from tests.benchmarks.attention_times import (
    Timed,
    growth_table,
    layers_of,
    measure,
    ratios_table,
    times_table,
    windows_remark,
)
from tests.benchmarks.progress import progress_bar

CONTEXTS, PREFILLS = (1024, 4096, 16384, 65536), (2048,)
GATES = (0.5, 0.05, 0.01)
_console = Console(soft_wrap=True)


class DType(enum.StrEnum):
    """Of queries, keys and values."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def main(
    context: Annotated[list[int] | None, typer.Option(min=1, help="Tokens while decoding; may be repeated.")] = None,
    prefill: Annotated[list[int] | None, typer.Option(min=1, help="Tokens of a prompt; may be repeated.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Requests of a step.")] = 1,
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 8,
    kv_heads: Annotated[int, typer.Option(min=1, help="Heads of keys and values.")] = 8,
    head_dim: Annotated[int, typer.Option(min=16, help="Width of a head.")] = 128,
    dtype: Annotated[list[DType] | None, typer.Option(help="Data type; may be repeated.")] = None,
    gate: Annotated[list[float] | None, typer.Option(help="Mean gate of CoPE; may be repeated.")] = None,
    num_layers: Annotated[
        int | None,
        typer.Option("--layers", min=1, help="Layers of a sample; enough to find caches cold when left out."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds a step.")] = 15,
    warm_ups: Annotated[int, typer.Option(min=0, help="Rounds that are run first and not counted.")] = 2,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads, for all. torch's number when left out.")] = None,
    out: Annotated[
        pathlib.Path, typer.Option(help="Where the result goes: OUT.json, OUT.md and OUT.png.")
    ] = pathlib.Path("build/attention"),
) -> None:
    """Measure one layer's attention while decoding and for a prompt: with a distance bias, with and without a window,
    and with contextual positions, over vLLM's CPU attention of the same shape.

    All take turns in one process. Before anything is timed, what it computes is compared with a reference.
    """
    if heads % kv_heads:
        raise typer.BadParameter(f"--heads must be a multiple of --kv-heads, got {heads} and {kv_heads}")
    if threads is not None:
        torch.set_num_threads(threads)
    layers = [Layer(getattr(torch, name), heads, kv_heads, head_dim) for name in dtype or list(DType)]
    works = [Work("decode", tokens, batch) for tokens in context or CONTEXTS]
    works += [Work("prefill", tokens, batch) for tokens in prefill or PREFILLS]
    gates = list(dict.fromkeys(gate or GATES))
    if not all(0 < one < 1 for one in gates):
        raise typer.BadParameter(f"--gate must be above 0 and below 1, got {', '.join(map(str, gates))}")
    timed: list[Timed] = []
    with progress_bar(_console) as bar:
        task = bar.add_task("checking", total=len(layers) * len(works) * (rounds + warm_ups))
        try:
            for layer in layers:
                check(layer, gates)
            for layer, work in itertools.product(layers, works):
                bar.update(task, description=f"{layer.dtype_name}, {work.name}")
                some = num_layers or layers_of(layer, work)
                timed.append(_time(layer, work, some, gates, rounds, warm_ups, lambda: bar.advance(task)))
        except (NoCompiler, Wrong) as error:
            bar.stop()
            _console.print(f"[bold red]failed[/] {error}", highlight=False)
            raise typer.Exit(1) from None
    _report([[one for one in timed if one.layer == layer] for layer in layers], out)


def _time(
    layer: Layer,
    work: Work,
    num_layers: int,
    gates: Sequence[float],
    rounds: int,
    warm_ups: int,
    advance: Callable[[], None],
) -> Timed:
    field = rivals(Step(layer, work), num_layers, gates)
    seconds = measure(field, num_layers, rounds=rounds, warm_ups=warm_ups, advance=advance)
    blocks = next(rival.blocks for rival in field if rival.name == WINDOWED)
    return Timed(layer, work, num_layers, seconds, float(blocks[0] / blocks.sum()), kernels_of(layer))


def setup(timed: Sequence[Timed]) -> str:
    """What is measured, in words."""
    threads = torch.get_num_threads()
    layers = ", ".join(f"{one.num_layers} ({one.layer.dtype_name}, {one.work.name})" for one in timed)
    return (
        f"Batch {timed[0].work.batch}, {threads} thread{'s' if threads != 1 else ''}. A step stores its tokens' keys "
        "and values and attends; a sample goes through layers that have caches of their own, while decoding through as "
        f"many as find them cold unless --layers says otherwise: {layers}. Random keys and queries, ALiBi's slopes; a "
        f"window tolerance of {TOLERANCE:g}; CoPE of {NPOS} positions, by its mean gate. Each attention was compared "
        "with a float64 reference before it was timed."
    )


def _report(by_layer: Sequence[Sequence[Timed]], out: pathlib.Path) -> None:
    tables: list[Table] = []
    for timed in by_layer:
        tables += [times_table(timed), ratios_table(timed), growth_table(timed)]
    every = [one for timed in by_layer for one in timed]
    remarks = [setup(every), *map(windows_remark, by_layer), *verdicts(every)]
    for table in tables:
        _console.print(table.for_terminal())
    for remark in remarks:
        _console.print(remark, highlight=False)
    markdown = record.sections(tables, remarks)
    result = {"steps": [one.to_json() for one in every], "remarks": remarks}
    files = record.write(out, result, record.Provenance.of_this_run("tests.benchmarks.attention"), markdown)
    picture = out.with_name(out.name + ".png")
    draw(every, picture)
    for file in (*files, picture):
        _console.print(f"wrote {file}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
