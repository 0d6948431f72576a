"""What a step's budget of re-rotated tokens does to throughput and to waits: ``python -m tests.benchmarks.budget``.

No model and no clock: our scheduler serves slots that never stand empty, and time is counted in usual steps. A step
lasts one if anybody decodes or prefills in it, and as much longer as it takes to turn what it turns. So it does on a
device where both wait for memory, and a usual step reads the weights.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pathlib
import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from rich.console import Console

from posenc_runtime.kv.budget import Speed, measured
from posenc_runtime.kv.crossing import Crossing, CrossingQueue, Rotation
from posenc_runtime.kv.deployment import Deployment
from tests.benchmarks import record
from tests.benchmarks.progress import progress_bar
from tests.benchmarks.tables import Table

BLOCK_SIZE = 16
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
        rotations, completed, spent = [], [], 0
        for crossing in list(self._crossings.values()):
            moves = []
            while crossing.waiting and (not spent or spent + crossing.waiting[0].num_tokens <= budget_tokens):
                spent += crossing.waiting[0].num_tokens
                moves.append(crossing.take())
            if moves:
                rotation = Rotation(from_index=crossing.from_index, to_index=crossing.to_index, moves=tuple(moves))
                rotations.append((crossing, rotation))
            if crossing.waiting:
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


class Simulation:
    """Our scheduler, with workers who say a token whenever they are asked, and a clock of usual steps."""

    def __init__(self, vllm_config: Any, load: Load, budget_tokens: int, token_cost: float) -> None:
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        from posenc_runtime.vllm_adapter.active import KEY
        from posenc_runtime.vllm_adapter.scheduler import PosencScheduler

        longest = load.trained[-1]
        deployment = Deployment(
            rope_type="linear",
            scales=tuple(float(length) / load.crosses_at for length in (*load.trained, 2 * longest)),
            original_max_position_embeddings=load.crosses_at,
            max_model_len=2 * longest,
            headroom_tokens=1,
            rerotate_budget_tokens=budget_tokens,
        )
        self._load, self._token_cost, self._served = load, token_cost, Served()
        self._due_since: dict[str, float] = {}  # requests that have to cross, until they run again
        # Room for all, twice: what crosses is copied, so that it never waits for blocks.
        tokens = (load.slots + 4) * (load.crosses_at + load.answer) + load.long * (load.long_at + load.answer)
        num_blocks = 2 * tokens // BLOCK_SIZE + 8 * load.slots
        config = copy.copy(vllm_config)
        for part in ("scheduler_config", "cache_config", "model_config"):
            setattr(config, part, copy.copy(getattr(config, part)))
        config.additional_config = dict(config.additional_config) | {KEY: deployment.to_mapping()}
        config.model_config.max_model_len = config.scheduler_config.max_model_len = deployment.max_model_len
        config.cache_config.num_gpu_blocks, config.cache_config.block_size = num_blocks, BLOCK_SIZE
        config.cache_config.enable_prefix_caching = False
        config.scheduler_config.async_scheduling = True
        config.scheduler_config.max_num_seqs = load.slots
        config.scheduler_config.max_num_batched_tokens = PREFILLED_TOKENS
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self._scheduler = PosencScheduler(
            config,
            KVCacheConfig(
                num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
        )

    def run(self, queue: type[CrossingQueue], advance: Callable[[], None]) -> Served:
        """Until all requests of the load have ended."""
        scheduler, served = self._scheduler, self._served
        scheduler._half._coordinator._crossing = queue()
        for number, (name, prompt) in enumerate(self._requests()):
            self._add(name, prompt, number)
        in_flight: deque[tuple[Any, Any]] = deque()
        self._note_who_is_due()
        while scheduler.has_requests() or in_flight:
            if scheduler.has_requests():
                in_flight.append(self._step())
                if len(in_flight) < 2 and in_flight[-1][1].req_ids:
                    continue  # scheduled ahead, as vLLM does
            for of_client in scheduler.update_from_output(*in_flight.popleft()).values():
                for said in of_client.outputs:
                    served.tokens += len(said.new_token_ids)
                    if said.finished:
                        advance()
        return served

    def _note_who_is_due(self) -> None:
        """When each request had to cross; the scheduler asks that before each step."""
        half = self._scheduler._half
        stock = half.due

        def due(request: Any) -> int | None:
            to_index: int | None = stock(request)
            if to_index is not None:
                self._due_since.setdefault(request.request_id, self._served.time)
            return to_index

        half.due = due

    def _step(self) -> tuple[Any, Any]:
        """What is scheduled, and what workers say to it. Time goes by."""
        from vllm.v1.outputs import ModelRunnerOutput

        served, output = self._served, self._scheduler.schedule()
        rotations = output.kv_connector_metadata.plan.rotations
        turning = self._token_cost * sum(move.num_tokens for rotation in rotations for move in rotation.moves)
        names = list(output.num_scheduled_tokens)
        for name in self._due_since.keys() & set(names):
            waits = served.long_waits if name.startswith("long") else served.waits
            waits.append(round(served.time + turning - self._due_since.pop(name), 4))
        lasted = bool(names) + turning
        served.time += lasted
        served.longest_step = max(served.longest_step, lasted)
        said = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[1] if self._is_computed(name) else [] for name in names],
        )
        return output, said

    def _is_computed(self, name: str) -> bool:
        """Whether the step that was just scheduled computes a request's last known token, so that another follows."""
        request = self._scheduler.requests[name]
        computed: int = request.num_computed_tokens
        return computed >= request.num_prompt_tokens

    def _requests(self) -> Iterator[tuple[str, int]]:
        """Names and prompts. Prompts differ a little in length, so that slots are not in step."""
        draw, before = random.Random(2), self._load.answer // 4
        every = self._load.requests // (self._load.long + 1)
        for number in range(self._load.requests):
            is_long = self._load.long and number % every == every // 2 and number // every < self._load.long
            crosses_at = self._load.long_at if is_long else self._load.crosses_at
            prompt = crosses_at - before + draw.randrange(max(before - 4, 1))
            yield f"{'long' if is_long else 'short'}-{number}", prompt

    def _add(self, name: str, num_prompt_tokens: int, number: int) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self._scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=[number % 100] * num_prompt_tokens,
                sampling_params=SamplingParams(max_tokens=self._load.answer, ignore_eos=True),
                pooling_params=None,
                block_hasher=None,
            )
        )


@contextlib.contextmanager
def a_configuration() -> Iterator[Any]:
    """vLLM's, of a model that nobody loads."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    from posenc_runtime import vllm_adapter
    from posenc_runtime.vllm_adapter import compat
    from posenc_runtime.vllm_adapter.engine_args import engine_arguments
    from tests.checkpoints import save_tiny

    vllm_adapter.register()
    compat.verify()
    deployment = Deployment(
        rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=256, max_model_len=512
    )
    arguments = engine_arguments(deployment, {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True})
    with (
        tempfile.TemporaryDirectory(prefix="posenc-bench-") as name,
        mock.patch.object(compat, "verify", lambda: None),  # done, and slow for every scheduler
    ):
        model = save_tiny(pathlib.Path(name) / "tiny")
        yield AsyncEngineArgs(model=str(model), **arguments).create_engine_config()


def default_budget(token_cost: float) -> int:
    """What workers would decide on a device that turns a token in so many usual steps."""
    return measured(
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
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    budgets = {f"{FIXED:,}": FIXED, f"default: {default_budget(token_cost):,}": default_budget(token_cost)}
    budgets["unbounded"] = UNBOUNDED
    queues = {"first come": FirstComeFirstServed, "half to the shortest": CrossingQueue}
    loads = [LOADS[number] for number in load or range(len(LOADS))]
    rows: list[tuple[str, ...]] = []
    results: list[dict[str, Any]] = []
    with a_configuration() as vllm_config, progress_bar(_console) as bar:
        task = bar.add_task("simulating", total=sum(each.requests for each in loads) * len(budgets) * len(queues))
        for each in loads:
            for budget, tokens in budgets.items():
                for order, queue in queues.items():
                    bar.update(task, description=f"{each.name}, {budget}, {order}")
                    served = Simulation(vllm_config, each, tokens, token_cost).run(queue, lambda: bar.advance(task))
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
