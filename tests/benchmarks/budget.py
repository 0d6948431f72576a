"""What a step's budget of re-rotated tokens does to throughput and to waits: ``python -m tests.benchmarks.budget``.

No model and no clock: our scheduler serves slots that never stand empty, and time is counted in usual steps. A step
lasts one if anybody decodes or prefills in it, and as much longer as it takes to turn what it turns. So it does on a
device where both wait for memory, and a usual step reads the weights.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from posenc_runtime.kv.budget import Speed, measured_budget
from posenc_runtime.kv.crossing import Crossing, CrossingQueue, Rotation
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import PosencMetadata
from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.progress import progress_bar
from tests.benchmarks.scheduler.core import BLOCK_SIZE, SchedulerCore

# An 8B model of 32 layers with 8 KV heads of 128 in bfloat16, on a device that moves 4.5 TB/s: a step reads 15 GB of
# weights, and to copy a turned token reads and writes its keys and values.
STEP_SECONDS = 15e9 / 4.5e12
TOKEN_SECONDS = 2 * 32 * 2 * 8 * 128 * 2 / 4.5e12
TOKEN_COST = TOKEN_SECONDS / STEP_SECONDS  # usual steps
FIXED, UNBOUNDED = 2048, 2**40
PREFILLED_TOKENS = 8192  # in a step, at most
_console = Console(soft_wrap=True)


@dataclasses.dataclass(frozen=True)
class Load:
    """Who is served: slots that are filled again as soon as a request ends, each of which crosses once.

    Attributes:
        slots: requests that run at once.
        crosses_at: tokens, of most of them.
        answer: tokens that a request says, a quarter of them or fewer before it crosses.
        requests: in all.
        long: of these, how many cross at ``long_at`` tokens instead, one after the other.
    """

    name: str
    slots: int
    crosses_at: int
    answer: int
    requests: int
    long: int = 0
    long_at: int = 0

    @property
    def trained(self) -> tuple[int, ...]:
        """Lengths at which requests cross, ascending."""
        return (self.crosses_at, self.long_at) if self.long else (self.crosses_at,)


LOADS = (
    Load("512 tokens", slots=64, crosses_at=512, answer=64, requests=256),
    Load("8k tokens", slots=64, crosses_at=8192, answer=64, requests=192),
    Load("512 and one of 128k", slots=64, crosses_at=512, answer=64, requests=512, long=1, long_at=131072),
)


class FirstComeFirstServed(CrossingQueue):
    """The order in which crossings were served before: all of a step's budget to the first, then to the next."""

    def advance(self, budget_tokens: int | None) -> tuple[list[tuple[Crossing, Rotation]], list[Crossing]]:
        assert budget_tokens is not None
        rotations: list[tuple[Crossing, Rotation]] = []
        completed, left = [], budget_tokens
        for crossing in list(self._crossings.values()):
            begun = crossing.num_begun
            left = max(left - crossing.begin(left, at_least=not rotations), 0)
            if crossing.num_begun > begun:
                rotations.append((crossing, crossing.rotation(begun)))
            if not crossing.is_whole:
                break
            completed.append(self._crossings.pop(crossing.request_id))
        return rotations, completed


@dataclasses.dataclass
class Served:
    """What became of a load.

    Attributes:
        waits: usual steps from the moment that a request had to cross until its keys were turned and it ran again;
            those of short crossings.
        long_waits: of the long ones.
        longest_step: usual steps.
    """

    time: float = 0.0
    tokens: int = 0
    longest_step: float = 0.0
    waits: list[float] = dataclasses.field(default_factory=list)
    long_waits: list[float] = dataclasses.field(default_factory=list)


class Simulation(SchedulerCore):
    """Our scheduler, with workers who say a token whenever they are asked, and a clock of usual steps."""

    def __init__(self, load: Load, budget_tokens: int, token_cost: float) -> None:
        longest = load.trained[-1]
        deployment = Deployment(
            rope_type="linear",
            scales=tuple(float(length) / load.crosses_at for length in (*load.trained, 2 * longest)),
            original_max_position_embeddings=load.crosses_at,
            max_model_len=2 * longest,
            headroom_tokens=1,
            rerotate_budget_tokens=budget_tokens,
        )
        # Room for all, twice: what crosses is copied, so that it never waits for blocks.
        tokens = (load.slots + 4) * (load.crosses_at + load.answer) + load.long * (load.long_at + load.answer)
        super().__init__(
            "rerotate",
            deployment,
            num_blocks=2 * tokens // BLOCK_SIZE + 8 * load.slots,
            max_running=load.slots,
            max_tokens_a_step=PREFILLED_TOKENS,
            caching=False,
        )
        self._load, self._token_cost, self._served = load, token_cost, Served()
        self._due_since: dict[str, float] = {}  # requests that have to cross, until they run again

    def run(self, queue: type[CrossingQueue], advance: Callable[[], None]) -> Served:
        """Until all requests of the load have ended."""
        self.scheduler._half.coordinator._crossing = queue()
        for number, (name, prompt) in enumerate(self._requests()):
            self.add(name, [number % 100] * prompt, self._load.answer)
        self._note_who_is_due()
        while self.scheduler.has_requests():
            for said in self.step():
                self._served.tokens += len(said.new_token_ids)
                if said.finished:
                    advance()
        return self._served

    def _note_who_is_due(self) -> None:
        """When each request had to cross; the scheduler asks that before each step."""
        half = self.scheduler._half
        stock = half.waits

        def waits(request: Any) -> None:
            self._due_since.setdefault(request.request_id, self._served.time)
            stock(request)

        half.waits = waits

    def _said(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """What workers say to a step. Time goes by."""
        served, metadata = self._served, output.kv_connector_metadata
        assert isinstance(metadata, PosencMetadata)
        turning = self._token_cost * sum(int(one.moves.num_tokens.sum()) for one in metadata.plan.rotations)
        for name in self._due_since.keys() & output.num_scheduled_tokens.keys():
            waits = served.long_waits if name.startswith("long") else served.waits
            waits.append(round(served.time + turning - self._due_since.pop(name), 4))
        lasted = bool(output.num_scheduled_tokens) + turning
        served.time += lasted
        served.longest_step = max(served.longest_step, lasted)
        return super()._said(output)

    def _requests(self) -> Iterator[tuple[str, int]]:
        """Names and prompts. Prompts differ a little in length, so that slots are not in step."""
        draw, before = random.Random(2), self._load.answer // 4
        every = self._load.requests // (self._load.long + 1)
        for number in range(self._load.requests):
            is_long = self._load.long and number % every == every // 2 and number // every < self._load.long
            crosses_at = self._load.long_at if is_long else self._load.crosses_at
            prompt = crosses_at - before + draw.randrange(max(before - 4, 1))
            yield f"{'long' if is_long else 'short'}-{number}", prompt


def default_budget(token_cost: float) -> int:
    """What workers would decide on a device that turns a token in so many usual steps."""
    return measured_budget(
        [
            Speed(
                token_seconds=token_cost * STEP_SECONDS,
                weights_seconds=STEP_SECONDS,
                weight_bytes=round(15e9),
                block_tokens=BLOCK_SIZE,
            )
        ]
    ).tokens


def main(
    token_cost: Annotated[float, typer.Option(help="Usual steps that turning a token takes.")] = TOKEN_COST,
    load: Annotated[list[int] | None, typer.Option(min=0, max=len(LOADS) - 1, help="Number of a load.")] = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="Write the result to OUT.json and OUT.md.")] = None,
) -> None:
    """Simulate loads whose requests all cross, under several budgets, in the order that is used and first come, first
    served.
    """
    budgets = {f"{FIXED:,}": FIXED, f"default: {default_budget(token_cost):,}": default_budget(token_cost)}
    budgets["unbounded"] = UNBOUNDED
    queues = {"first come": FirstComeFirstServed, "half to the shortest": CrossingQueue}
    loads = [LOADS[number] for number in load or range(len(LOADS))]
    rows: list[tuple[str, ...]] = []
    results: list[dict[str, Any]] = []
    with progress_bar(_console) as bar:
        task = bar.add_task("simulating", total=sum(each.requests for each in loads) * len(budgets) * len(queues))
        for each in loads:
            for budget, tokens in budgets.items():
                for order, queue in queues.items():
                    bar.update(task, description=f"{each.name}, {budget}, {order}")
                    served = Simulation(each, tokens, token_cost).run(queue, lambda: bar.advance(task))
                    rows.append(row(each, budget, order, served))
                    results.append({"load": each.name, "budget": tokens, "order": order, **dataclasses.asdict(served)})
    _report(
        Table("64 slots whose requests all cross, times in usual steps", HEADINGS, tuple(rows)),
        results,
        token_cost,
        out,
    )


HEADINGS = ("load", "budget, tokens a step", "order", "tokens a step", "wait: p50", "p99", "of 128k", "longest step")


def row(load: Load, budget: str, order: str, served: Served) -> tuple[str, ...]:
    """Of a table, for one simulation."""
    waits = sorted(served.waits)
    return (
        load.name,
        budget,
        order,
        f"{served.tokens / served.time:.1f}",
        f"{waits[len(waits) // 2]:.1f}",
        f"{waits[min(int(0.99 * len(waits)), len(waits) - 1)]:.1f}",
        f"{max(served.long_waits):.1f}" if served.long_waits else "",
        f"{served.longest_step:.2f}",
    )


def _report(table: Table, results: list[dict[str, Any]], token_cost: float, out: pathlib.Path | None) -> None:
    remark = (
        f"Turning a token takes {token_cost:.3g} usual steps: an 8B model of 32 layers with 8 KV heads of 128 in "
        "bfloat16, 15 GB of weights that a step reads once, and keys and values that are read and written once. A step "
        "lasts one if anybody is served in it, and as much longer as it takes to turn what it turns. Wait: from "
        "the moment that a request has to cross until it runs again. Of 128k: of the one long crossing. Nothing "
        "here was timed."
    )
    _console.print(table.for_terminal())
    _console.print(remark, highlight=False)
    if out is None:
        return
    markdown = "\n\n".join([f"{table.title}:", table.as_markdown(), remark])
    result = {"token_cost": token_cost, "cases": results}
    for file in record.write(out, result, record.Provenance.of_this_run("tests.benchmarks.budget"), markdown):
        _console.print(f"wrote {file}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
