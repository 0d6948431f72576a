"""What the arrival of a long prompt costs: beside the engine's loop, where vLLM hashes it, and in it."""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Callable, Sequence

from posenc_runtime.kv.deployment import Deployment
from server.printing.tables import Table
from tests.benchmarks.scheduler.core import BLOCK_SIZE, SchedulerCore, Side


@dataclasses.dataclass(frozen=True)
class Case:
    """Who admits, and at which scale the request starts.

    Attributes:
        scaled: the prompt does not fit into scale 1.
        reuses: prefixes are looked up at other scales, too.
    """

    name: str
    side: Side
    scaled: bool = False
    reuses: bool = False
    scales: tuple[float, ...] = (1.0, 2.0, 4.0)


CASES = (
    Case("stock", "stock"),
    Case("rerotate, at scale 1", "rerotate"),
    Case("rerotate, at scale 2", "rerotate", scaled=True),
    Case("pin, at scale 2", "pin", scaled=True),
    Case("prefixes of 3 scales", "rerotate", reuses=True),
    Case("prefixes of 6 scales", "rerotate", reuses=True, scales=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0)),
)


@dataclasses.dataclass(frozen=True)
class Admitted:
    """Median CPU seconds of an arrival.

    Attributes:
        hashed: on the thread that takes requests in.
        admitted: of the engine's loop, before its next step.
        scheduled: of the step that looks the prefix up and gives blocks.
    """

    case: Case
    tokens: int
    hashed: float
    admitted: float
    scheduled: float


def measure(case: Case, tokens: int, *, repetitions: int, advance: Callable[[], None]) -> Admitted:
    """Prompts that nobody has sent before, one after the other."""
    trained = tokens // 2 if case.scaled else 2 * tokens
    deployment = Deployment(
        rope_type="yarn",
        scales=case.scales,
        original_max_position_embeddings=trained,
        max_model_len=int(trained * case.scales[-1]),
        on_crossing="pin" if case.side == "pin" else "rerotate",
        prefix_reuse="rerotate" if case.reuses else "exact",
        headroom_tokens=1,
        rerotate_budget_tokens=2048,
    )
    draw = random.Random(1)
    times: dict[str, list[float]] = {"hashed": [], "admitted": [], "scheduled": []}
    core = SchedulerCore(case.side, deployment, num_blocks=2 * tokens // BLOCK_SIZE + 64, max_running=2, ahead=False)
    for number in range(repetitions):
        arrival = core.add(f"r{number}", [draw.randrange(50_000) for _ in range(tokens)], 1)
        core.times.clear()
        while core.scheduler.has_requests():
            core.step()
        times["hashed"].append(arrival.schedule)
        times["admitted"].append(arrival.update)
        times["scheduled"].append(core.times[0].schedule)
        advance()
    return Admitted(case, tokens, **{name: statistics.median(seconds) for name, seconds in times.items()})


def table(admitted: Sequence[Admitted]) -> Table:
    return Table(
        title="A prompt arrives: CPU time on the thread that takes it in, in the loop, and in the step that begins it",
        headings=("side", "tokens", "hashed, ms", "admitted, ms", "scheduled, ms"),
        rows=tuple(
            (
                one.case.name,
                f"{one.tokens:,}",
                *(f"{seconds * 1e3:.2f}" for seconds in (one.hashed, one.admitted, one.scheduled)),
            )
            for one in admitted
        ),
    )
