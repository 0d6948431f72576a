"""Throughput of two engines that are alive and take turns: ours over stock vLLM's, and over ours in another way.

With ReRoPE, requests within the trained length are to cost what they cost in stock vLLM.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.benchmarks.engine_process import EngineFailed, EngineProcess
from tests.benchmarks.gpu import output
from tests.benchmarks.gpu.rows import Row, Target, at_least
from tests.benchmarks.gpu_engine.part import Found, Part, Stage, fewer
from tests.benchmarks.gpu_engine.sizes import SCALES, Sizes
from tests.benchmarks.intervals import median_and_quartiles
from tests.benchmarks.throughput import Invalid, Measured
from tests.benchmarks.throughput import measure as measure_case
from tests.benchmarks.two_engines import Case, Side

_IDLE_SECONDS = 3.0  # that are waited for the other engine to be idle: beside a GPU there are cores for both


@dataclasses.dataclass(frozen=True)
class Match:
    """Two engines.

    Attributes:
        name: of the part, and of its logs.
        how: what all rows have in common.
        quantity: one engine over the other.
        engines: by whether this is a rehearsal.
        target: of the ratio.
        besides: further cases, which have no target. Their rows say how long their prompts are.
    """

    name: str
    how: str
    quantity: str
    engines: Callable[[Sizes, bool], tuple[Side, Side]]
    target: Target | None
    besides: Callable[[Sizes], list[Case]] = lambda sizes: []

    @property
    def part(self) -> Part:
        return Part(self.name, self.rows, self.measure)

    def rows(self, sizes: Sizes) -> list[Row]:
        return [row for row, _ in self._asked(sizes)]

    def _asked(self, sizes: Sizes) -> list[tuple[Row, Case]]:
        """What it measures, in the order in which it does."""
        found = [(Row(f"{case.name}, {self.how}", self.quantity, self.target), case) for case in sizes.cases]
        for case in self.besides(sizes):
            name = f"{case.name}, prompts of {case.prompt_tokens:,}, {self.how}"
            found.append((Row(name, self.quantity), case))
        return found

    def measure(self, stage: Stage) -> Found:
        """Case by case. One that costs an engine its life fails alone: both are started again for what is left."""
        left = self._asked(stage.sizes)
        while left:
            with self._started(stage, num_left=len(left)) as engines:
                is_alive = True
                while is_alive and left:
                    row, case = left.pop(0)
                    try:
                        answers, samples = self._answer(stage, engines, row, case)
                    except (Invalid, EngineFailed) as error:
                        if not stage.goes_on():
                            raise
                        is_alive = isinstance(error, Invalid)
                        output.tell(f"{row.name}: {error}")
                        answers, samples = [row.failed(str(error).splitlines()[-1])], {}
                    yield answers, samples
                    if not stage.goes_on():
                        return

    @contextlib.contextmanager
    def _started(self, stage: Stage, num_left: int) -> Iterator[tuple[EngineProcess, EngineProcess]]:
        """Both engines, with logs of their own for each start."""
        engines = [
            EngineProcess(
                stage.model,
                side.arguments,
                worker_cores=stage.cores,
                plugins=side.plugins,
                log=stage.folder / f"{self.name}-{num_left}-left-{number}.log",
                in_one_process=stage.in_one_process,
                patience=stage.patience,
                idle_patience=_IDLE_SECONDS,
            )
            for number, side in enumerate(self.engines(stage.sizes, stage.is_rehearsal))
        ]
        with contextlib.ExitStack() as stack:
            with ThreadPoolExecutor() as pool:  # they start side by side
                first, second = pool.map(stack.enter_context, engines)
            yield first, second

    def _answer(
        self, stage: Stage, engines: tuple[EngineProcess, EngineProcess], row: Row, case: Case
    ) -> tuple[list[Row], dict[str, Any]]:
        """Nothing when there was no time for a pair."""
        sizes, (one, other) = stage.sizes, engines
        if one.runs != other.runs:
            raise Invalid(f"vLLM must run both engines alike, got {one.runs} and {other.runs}")
        first, second = self.engines(sizes, stage.is_rehearsal)
        measured = measure_case(
            *(case, *engines),
            name_scales=(first.names_scales, second.names_scales),
            pairs=sizes.pairs,
            warm_ups=1,
            seed=0,
            advance=lambda: None,
            sample_seconds=sizes.sample_seconds,
            goes_on=stage.goes_on,
        )
        if not measured.ours:
            return [], {}
        return [row.measured(measured.ratio, remark=_remark(measured, sizes))], {
            row.name: measured.to_json() | {"runs": one.runs}
        }


def our_arguments(sizes: Sizes, on_crossing: OnCrossing, attention: AttentionChoice | None = None) -> dict[str, Any]:
    deployment = Deployment(
        rope_type="yarn",
        scales=SCALES,
        original_max_position_embeddings=sizes.throughput_trained,
        max_model_len=sizes.throughput_longest,
        on_crossing=on_crossing,
    )
    return engine_arguments(deployment, sizes.throughput_arguments, attention)


def stock_arguments(sizes: Sizes) -> dict[str, Any]:
    """Every request at the largest scale, as vLLM's documentation configures YaRN."""
    return sizes.throughput_arguments | {
        "max_model_len": sizes.throughput_longest,
        "hf_overrides": {
            "max_position_embeddings": sizes.throughput_longest,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": sizes.model["rope_parameters"]["rope_theta"],
                "factor": SCALES[-1],
                "original_max_position_embeddings": sizes.throughput_trained,
            },
        },
    }


def read_time_arguments(sizes: Sizes) -> dict[str, Any]:
    """ReRoPE with its own defaults, as a flag on vLLM, for requests as long as those that YaRN's scales are for."""
    section = {"rope_type": "rerope", "original_max_position_embeddings": sizes.throughput_trained}
    return sizes.throughput_arguments | {
        "max_model_len": sizes.throughput_longest,
        "additional_config": {"posenc": section},
    }


def unscaled_arguments(sizes: Sizes) -> dict[str, Any]:
    """Stock vLLM as it is, which takes longer requests as well."""
    longest = sizes.throughput_longest
    overrides = {"max_position_embeddings": longest}
    return sizes.throughput_arguments | {"max_model_len": longest, "hf_overrides": overrides}


def _remark(one: Measured, sizes: Sizes) -> str:
    ours, stock = median_and_quartiles(one.ours).value, median_and_quartiles(one.stock).value
    return f"{ours:,.0f} and {stock:,.0f} tokens/s{fewer(len(one.ours), sizes.pairs, 'pairs')}"


def _over_stock(on_crossing: OnCrossing) -> Callable[[Sizes, bool], tuple[Side, Side]]:
    return lambda sizes, _: (
        Side("ours", our_arguments(sizes, on_crossing), is_ours=True, names_scales=True),
        Side("stock", stock_arguments(sizes), is_ours=False, names_scales=False),
    )


def _over_tables(sizes: Sizes, is_rehearsal: bool) -> tuple[Side, Side]:
    """Where there is no GPU to rotate on, auto is off."""
    fused = our_arguments(sizes, "pin", AttentionChoice(fused_rotary="auto" if is_rehearsal else "on"))
    tables = our_arguments(sizes, "pin", AttentionChoice(fused_rotary="off"))
    return (
        Side("attention that rotates", fused, is_ours=True, names_scales=True),
        Side("tables", tables, is_ours=True, names_scales=True),
    )


def _turning_over_stock(sizes: Sizes, _: bool) -> tuple[Side, Side]:
    return (
        Side("ours, ReRoPE", read_time_arguments(sizes), is_ours=True, names_scales=False),
        Side("stock, unscaled", unscaled_arguments(sizes), is_ours=False, names_scales=False),
    )


_OVER_STOCK = "tokens/s, ours over stock"
PINNED = Match("throughput", "pinned", _OVER_STOCK, _over_stock("pin"), at_least(0.99)).part
# What it costs that requests may cross, while none does, is for information.
MAY_CROSS = Match("throughput-crossing", "may cross", _OVER_STOCK, _over_stock("rerotate"), None).part
# Where all rows are reached, attention.fused_rotary: auto may be on (fused_rotary.MEASURED_FASTER).
FUSED = Match("fused", "pinned", "tokens/s, attention that rotates over tables", _over_tables, at_least(1.0)).part
# Requests within the trained length are to be as fast as stock vLLM's, 1.00. What longer ones cost is for information.
READ_TIME = Match(
    "throughput-read-time",
    "ReRoPE",
    _OVER_STOCK,
    _turning_over_stock,
    at_least(0.99),
    besides=lambda sizes: sizes.long_cases,
).part
