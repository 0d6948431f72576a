"""The longest step of the engine's loop while one request crosses and others decode."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import random
import statistics
from collections.abc import Callable, Sequence

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from server.printing.tables import Table
from tests.benchmarks.scheduler.core import BLOCK_SIZE, SchedulerCore

OTHERS = 32
SHORTEST = 40  # steps that are measured, at least
BUDGET_TOKENS = 57_216  # before a step: what ``tests.benchmarks.budget`` gives an 8B model on a GPU of 4.5 TB/s


@dataclasses.dataclass(frozen=True)
class Crossed:
    """What a crossing cost.

    Attributes:
        usual: median CPU seconds of a step.
        longest: CPU seconds of the longest step, median of repetitions.
        plan_bytes: largest plan that was sent to the workers.
    """

    how: OnCrossing
    copied: bool
    blocks: int
    usual: float
    longest: float
    plan_bytes: int


def measure(how: OnCrossing, blocks: int, *, copied: bool, repetitions: int, advance: Callable[[], None]) -> Crossed:
    """Let a request with so many blocks cross, with room for copies of its blocks or without."""
    usual, longest, plan_bytes = [], [], 0
    for _ in range(repetitions):
        core = about_to_cross(how, blocks, copied)
        gc.collect()
        gc.disable()
        num_steps = 0
        while num_steps < SHORTEST or not _is_through(core):
            core.step()
            num_steps += 1
            if core.last is not None:
                plan_bytes = max(plan_bytes, len(pickle.dumps(core.last.kv_connector_metadata, 5)))
        gc.enable()
        seconds = [times.step for times in core.times]
        usual.append(statistics.median(seconds))
        longest.append(max(seconds))
        advance()
    return Crossed(how, copied, blocks, statistics.median(usual), statistics.median(longest), plan_bytes)


def about_to_cross(how: OnCrossing, blocks: int, copied: bool) -> SchedulerCore:
    """A request eight tokens before the length of its scale, beside others that decode."""
    trained = blocks * BLOCK_SIZE
    deployment = Deployment(
        rope_type="yarn",
        scales=(1.0, 2.0, 4.0),
        original_max_position_embeddings=trained,
        max_model_len=4 * trained,
        on_crossing=how,
        headroom_tokens=1,
        rerotate_budget_tokens=BUDGET_TOKENS,
    )
    spare = 2 * blocks + 200 if copied else 20
    core = SchedulerCore(
        "rerotate",
        deployment,
        num_blocks=blocks + OTHERS * 24 + spare,
        max_running=OTHERS + 2,
        max_tokens_a_step=8192,
    )
    for number in range(OTHERS):
        core.add(f"o{number}", [5, number, *[3] * (number % BLOCK_SIZE)], trained - 100)
    draw = random.Random(3)
    core.add("long", [draw.randrange(200) for _ in range(trained - 8)], 200)
    while core.scheduler.requests["long"].num_computed_tokens < trained - 8:
        core.step()
    core.times.clear()
    return core


def _is_through(core: SchedulerCore) -> bool:
    request = core.scheduler.requests["long"]
    crossings = core.scheduler.connector.scheduler_half.said_so_far(request)["posenc"]["crossings"]
    return bool(crossings) and request.num_computed_tokens >= crossings[0]["at"]


def table(crossed: Sequence[Crossed]) -> Table:
    return Table(
        title=f"One request crosses while {OTHERS} decode: CPU time of a step",
        headings=("crossing", "blocks", "usual, ms", "longest, ms", "plan, kB"),
        rows=tuple(
            (
                f"{one.how}{', copied' if one.copied else ', in place' if one.how == 'rerotate' else ''}",
                f"{one.blocks:,}",
                f"{one.usual * 1e3:.2f}",
                f"{one.longest * 1e3:.2f}",
                f"{one.plan_bytes / 1e3:,.1f}",
            )
            for one in crossed
        ),
    )
