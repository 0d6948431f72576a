"""A step in which everybody decodes and nobody crosses, side by side with stock vLLM's."""

from __future__ import annotations

import dataclasses
import gc
import random
import statistics
from collections.abc import Callable, Sequence

from posenc_runtime.kv.deployment import Deployment
from server.printing.tables import Table
from tests.benchmarks.scheduler.core import BLOCK_SIZE, SchedulerCore, Side

FAR = Deployment(  # nobody gets there
    rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=1 << 20, max_model_len=1 << 21
)
WARM_UP = 20


@dataclasses.dataclass(frozen=True)
class Cell:
    """So many requests, each with so many blocks.

    Attributes:
        seconds: median CPU time of a step, by side.
        ratios: of a step over stock's, by side: quartiles and median of pairs of steps.
    """

    running: int
    blocks: int
    ahead: bool
    seconds: dict[Side, float]
    ratios: dict[Side, tuple[float, float, float]]


def steady_core(side: Side, running: int, blocks: int, *, steps: int, ahead: bool) -> SchedulerCore:
    """Requests that decode and go on decoding for so many steps. All but their last blocks are the same ones."""
    rest = steps // BLOCK_SIZE + 4
    core = SchedulerCore(
        side,
        dataclasses.replace(FAR, on_crossing="pin") if side == "pin" else FAR,
        num_blocks=blocks + running * rest + 64,
        max_running=running + 1,
        ahead=ahead,
    )
    draw = random.Random(0)
    common = [draw.randrange(200) for _ in range((blocks - 1) * BLOCK_SIZE)]
    for number in range(running):
        if number == 1:
            core.step()  # the first has filled what they share
            core.step()
        # Blocks fill up at different steps, as they do in a server.
        core.add(f"r{number}", [*common, 2000 + number, *[3] * (number % BLOCK_SIZE)], 100_000)
    for _ in range(3):
        core.step()
    if len(core.scheduler.running) != running:
        raise RuntimeError(f"{len(core.scheduler.running)} requests run, and not {running}")
    return core


def measure(
    running: int, blocks: int, sides: Sequence[Side], *, steps: int, ahead: bool, advance: Callable[[], None]
) -> Cell:
    """Steps of all sides in turns, in a new order each time."""
    cores = {side: steady_core(side, running, blocks, steps=steps + WARM_UP, ahead=ahead) for side in sides}
    gc.collect()
    gc.disable()
    order = list(sides)
    for step in range(WARM_UP + steps):
        random.shuffle(order)
        for side in order:
            cores[side].step()
        if step == WARM_UP:
            for core in cores.values():
                core.times.clear()
    gc.enable()
    seconds = {side: [times.step for times in core.times] for side, core in cores.items()}
    advance()
    return Cell(
        running=running,
        blocks=blocks,
        ahead=ahead,
        seconds={side: statistics.median(of_side) for side, of_side in seconds.items()},
        ratios={
            side: _quartiles([ours / stock for ours, stock in zip(of_side, seconds["stock"], strict=True)])
            for side, of_side in seconds.items()
            if side != "stock"
        },
    )


def table(cells: Sequence[Cell]) -> Table:
    sides = list(cells[0].ratios)
    return Table(
        title="A step in which everybody decodes: CPU time, and its ratio to stock vLLM's",
        headings=("running", "blocks each", "scheduled", "stock, us", *(f"{side} / stock" for side in sides)),
        rows=tuple(
            (
                f"{cell.running:,}",
                f"{cell.blocks:,}",
                "ahead" if cell.ahead else "in step",
                f"{cell.seconds['stock'] * 1e6:,.0f}",
                *("{1:.2f} ({0:.2f} to {2:.2f})".format(*cell.ratios[side]) for side in sides),
            )
            for cell in cells
        ),
    )


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high
