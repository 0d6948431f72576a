"""Throughput of our engine over stock vLLM's with static YaRN at our largest scale: both are alive, and take turns."""

from __future__ import annotations

import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.vllm_adapter.engine_args import engine_arguments
from tests.benchmarks.engine_process import EngineFailed, EngineProcess
from tests.benchmarks.gpu.rows import Row, at_least
from tests.benchmarks.gpu_engine.part import Found, Part, Stage
from tests.benchmarks.gpu_engine.sizes import SCALES, Sizes
from tests.benchmarks.intervals import median_and_quartiles
from tests.benchmarks.throughput import Invalid, Measured
from tests.benchmarks.throughput import measure as measure_case


def rows(sizes: Sizes, on_crossing: OnCrossing) -> list[Row]:
    """Requests that may cross are not scheduled ahead, as stock vLLM's are: what that costs is for information."""
    target = at_least(0.99) if on_crossing == "pin" else None
    return [
        Row(f"{case.name}, {'pinned' if on_crossing == 'pin' else 'may cross'}", "tokens/s, ours over stock", target)
        for case in sizes.cases
    ]


def our_arguments(sizes: Sizes, on_crossing: OnCrossing) -> dict[str, Any]:
    deployment = Deployment(
        rope_type="yarn",
        scales=SCALES,
        original_max_position_embeddings=sizes.throughput_trained,
        max_model_len=int(SCALES[-1] * sizes.throughput_trained),
        on_crossing=on_crossing,
    )
    return engine_arguments(deployment, sizes.throughput_arguments)


def stock_arguments(sizes: Sizes) -> dict[str, Any]:
    """Every request at the largest scale, as vLLM's documentation configures YaRN."""
    longest = int(SCALES[-1] * sizes.throughput_trained)
    return sizes.throughput_arguments | {
        "max_model_len": longest,
        "hf_overrides": {
            "max_position_embeddings": longest,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": sizes.model["rope_parameters"]["rope_theta"],
                "factor": SCALES[-1],
                "original_max_position_embeddings": sizes.throughput_trained,
            },
        },
    }


def measure(stage: Stage, on_crossing: OnCrossing) -> Found:
    sizes = stage.sizes
    sides = (("ours", our_arguments(sizes, on_crossing), "posenc"), ("stock", stock_arguments(sizes), ""))
    engines = [
        EngineProcess(
            stage.model,
            arguments,
            worker_cores=stage.cores,
            plugins=plugins,
            log=stage.folder / f"{name}-{on_crossing}.log",
            in_one_process=stage.in_one_process,
        )
        for name, arguments, plugins in sides
    ]
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor() as pool:  # they start side by side
            ours, stock = pool.map(stack.enter_context, engines)
        try:
            measured = [
                measure_case(case, ours, stock, pairs=sizes.pairs, warm_ups=1, seed=0, advance=lambda: None)
                for case in sizes.cases
            ]
        except Invalid as error:
            raise EngineFailed(str(error)) from error
    filled = [
        row.measured(one.ratio, remark=_speeds(one))
        for row, one in zip(rows(sizes, on_crossing), measured, strict=True)
    ]
    return filled, {"cases": [one.to_json() for one in measured]}


def _speeds(one: Measured) -> str:
    ours, stock = median_and_quartiles(one.ours).value, median_and_quartiles(one.stock).value
    return f"{ours:,.0f} and {stock:,.0f} tokens/s"


PINNED = Part("throughput", functools.partial(rows, on_crossing="pin"), functools.partial(measure, on_crossing="pin"))
MAY_CROSS = Part(
    "throughput-crossing",
    functools.partial(rows, on_crossing="rerotate"),
    functools.partial(measure, on_crossing="rerotate"),
)
