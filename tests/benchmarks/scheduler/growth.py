"""What our containers in the scheduler hold after tens of thousands of random requests."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import tracemalloc
from collections.abc import Callable, Sequence

from vllm.v1.request import RequestStatus

import posenc_runtime
from posenc_runtime.kv.deployment import Deployment
from server.printing.tables import Table
from tests.benchmarks.scheduler.core import SchedulerCore

RUNNING = 64
NUM_BLOCKS = 1024
TRAINED = 128
DEPLOYMENT = Deployment(
    rope_type="yarn",
    scales=(1.0, 2.0, 4.0),
    original_max_position_embeddings=TRAINED,
    max_model_len=4 * TRAINED,
    headroom_tokens=16,
    prefix_reuse="rerotate",
    rerotate_budget_tokens=256,
)


@dataclasses.dataclass(frozen=True)
class Point:
    """After so many requests, with nobody there: bytes that our files have allocated, and what ended how."""

    requests: int
    num_bytes: int
    crossings: int
    preemptions: int


def measure(num_requests: int, *, points: int, advance: Callable[[], None]) -> list[Point]:
    """Requests come and go: prefixes in common, all three kinds of crossing, preemptions, cancellations."""
    core = SchedulerCore("rerotate", DEPLOYMENT, num_blocks=NUM_BLOCKS, max_running=RUNNING, max_tokens_a_step=2048)
    draw = random.Random(7)
    heads = [[draw.randrange(200) for _ in range(96)] for _ in range(8)]
    ours = tracemalloc.Filter(True, str(pathlib.Path(posenc_runtime.__file__).parent / "*"))
    found, number, crossings, preemptions = [], 0, 0, 0
    tracemalloc.start()
    for point in range(points + 1):
        while number < num_requests * point // points or core.scheduler.requests:
            while number < num_requests * point // points and len(core.scheduler.requests) < RUNNING + 8:
                prompt = [*draw.choice(heads)[: draw.randint(1, 96)], *[draw.randrange(200)] * draw.randint(1, 60)]
                how = draw.choice([None, None, None, "recompute", "pin"])
                core.add(f"r{number}", prompt, draw.choice([1, 4, 30, 200]), how)
                number += 1
            for output in core.step():
                if output.finished:
                    crossings += len(output.kv_transfer_params["posenc"]["crossings"])
            preemptions += len(core.last.preempted_req_ids or ()) if core.last else 0
            if not draw.randrange(8) and core.scheduler.requests:
                _cancel(core, draw.choice(list(core.scheduler.requests)))
        while core.scheduler.has_requests():
            core.step()
        core.times.clear()
        snapshot = tracemalloc.take_snapshot().filter_traces([ours])
        num_bytes = sum(trace.size for trace in snapshot.traces)
        found.append(Point(number, num_bytes, crossings, preemptions))
        advance()
    tracemalloc.stop()
    return found


def _cancel(core: SchedulerCore, name: str) -> None:
    core.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)


def table(points: Sequence[Point]) -> Table:
    return Table(
        title=f"What our files hold after random requests, {RUNNING} at once, when all have ended",
        headings=("requests", "kB", "crossings so far", "preemptions so far"),
        rows=tuple(
            (f"{one.requests:,}", f"{one.num_bytes / 1e3:,.1f}", f"{one.crossings:,}", f"{one.preemptions:,}")
            for one in points
        ),
    )
