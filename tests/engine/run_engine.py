"""Run vLLM's ``LLM`` in a process of its own: each test gets a fresh engine, and stock vLLM one without our plugin."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from tests.engine import device, forked, forked_for_triton

# Scheduler and worker in one process start in a third of the time. The tests over HTTP run them apart, as the server
# does.
_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the engine said to one request: tokens and their logprobs, and how much of the prompt was cached."""

    token_ids: list[int]
    logprobs: list[float]
    num_cached_tokens: int
    posenc: dict[str, Any] | None


def run_engine(
    model: pathlib.Path,
    arguments: dict[str, Any],
    batches: Sequence[Sequence[tuple[Any, int]]],
    *,
    plugins: str | None = None,
    environment: dict[str, str] | None = None,
    module: str = __name__,
    triton: bool = False,
    folder: pathlib.Path,
) -> list[list[Answer]]:
    """Start an engine, give it batches one after the other, each a list of (prompt, max_tokens), greedily.

    A prompt is a list of tokens, or a dictionary with ``token_ids`` and a picture's ``seed``, ``height`` and ``width``.

    Args:
        plugins: vLLM's ``VLLM_PLUGINS``; an empty string loads none.
        module: what runs the job, after changes of its own.
        triton: whether vLLM is to find Triton's interpreter when it is imported.
        folder: where the job and its log are kept.
    """
    job = folder / "job.json"
    result = folder / "result.json"
    log = folder / "engine.log"
    result.unlink(missing_ok=True)
    asked = {"model": str(model), "arguments": device.ENGINE | arguments, "batches": batches, "result": str(result)}
    job.write_text(json.dumps(asked))
    workers = arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1)
    settings = {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"} | _ONE_PROCESS
    settings |= device.environment(workers)
    if plugins is not None:
        settings["VLLM_PLUGINS"] = plugins
    told = os.environ | settings | (environment or {})
    log.unlink(missing_ok=True)
    ended = forked_for_triton.status if triton else forked.status
    ended(module, [str(job)], environment=told, log=log, timeout=900)
    if not result.exists():  # an engine that has answered may stop as it likes
        raise EngineFailed(log.read_text()[-6000:])
    return [[Answer(**answer) for answer in batch] for batch in json.loads(result.read_text())["answers"]]


@dataclasses.dataclass(frozen=True)
class Ran:
    """How an engine ran, as it says itself.

    Attributes:
        model_runner: 1 or 2, of vLLM's.
        cudagraph_mode: vLLM's name for it.
        graphs: CUDA graphs that it captured.
        compiled: pieces of its model that vLLM compiled and kept.
        found: pieces that an earlier engine had kept.
        attention: what attends in its layers; not known where workers run apart.
    """

    model_runner: int
    async_scheduling: bool
    cudagraph_mode: str
    graphs: int
    compiled: int
    found: int
    attention: list[str]


def how_it_ran(folder: pathlib.Path) -> Ran:
    """How the engine ran that ran in a folder."""
    return Ran(**json.loads((folder / "result.json").read_text())["ran"])


def counted(folder: pathlib.Path, metric: str) -> float:
    """A counter of the engine that ran in a folder, summed over its labels; needs ``disable_log_stats=False``."""
    total: float = json.loads((folder / "result.json").read_text())["counters"][metric]
    return total


def blocks_in_use(folder: pathlib.Path) -> int:
    """KV blocks that nobody had given back when the engine that ran in a folder had nothing more to do."""
    in_use: int = json.loads((folder / "result.json").read_text())["blocks_in_use"]
    return in_use


class EngineFailed(RuntimeError):
    """The engine did not start or did not finish; the message is the end of its log."""


def run_job(job: dict[str, Any]) -> None:
    from prometheus_client import REGISTRY
    from vllm import LLM, SamplingParams

    _rank_without_compiling()
    llm = LLM(job["model"], **job["arguments"])
    answers = []
    for batch in job["batches"]:
        outputs = llm.generate(
            [_prompt(prompt) for prompt, _ in batch],
            [
                SamplingParams(max_tokens=max_tokens, temperature=0, logprobs=0, ignore_eos=True)
                for _, max_tokens in batch
            ],
            use_tqdm=False,
        )
        answers.append([_answer(output) for output in outputs])
    counters = {
        metric.name: sum(sample.value for sample in metric.samples if sample.name.endswith("_total"))
        for metric in REGISTRY.collect()
        if metric.type == "counter"
    }
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    in_use = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # vLLM's null block is never free
    result = {
        "answers": answers,
        "counters": counters,
        "blocks_in_use": in_use,
        "ran": _ran(llm.llm_engine.vllm_config),
    }
    pathlib.Path(job["result"]).write_text(json.dumps(result))
    # At its end an engine searches all that is imported for garbage, several times: longer than its start takes.
    gc.disable()
    gc.collect = lambda generation=2: 0


def _rank_without_compiling() -> None:
    """vLLM ranks sampled tokens by a function that torch compiles; no test looks at ranks."""
    from vllm.v1.sample import sampler

    if ranks := getattr(sampler, "batched_count_greater_than", None):
        sampler.batched_count_greater_than = inspect.unwrap(ranks)


def _prompt(prompt: Any) -> Any:
    """For vLLM: tokens, or tokens with a picture, which is named by the seed of its noise and its size in pixels."""
    if isinstance(prompt, list):
        return {"prompt_token_ids": prompt}
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(prompt["seed"])
    pixels = noise.integers(256, size=(prompt["height"], prompt["width"], 3), dtype=np.uint8)
    return {"prompt_token_ids": prompt["token_ids"], "multi_modal_data": {"image": Image.fromarray(pixels)}}


def _ran(vllm_config: Any) -> dict[str, Any]:
    from vllm.compilation.counter import compilation_counter

    compilation = vllm_config.compilation_config
    layers = compilation.static_forward_context.values()
    return {
        "model_runner": 2 if vllm_config.use_v2_model_runner else 1,
        "async_scheduling": bool(vllm_config.scheduler_config.async_scheduling),
        "cudagraph_mode": compilation.cudagraph_mode.name,
        "graphs": compilation_counter.num_cudagraph_captured,
        "compiled": compilation_counter.num_compiled_artifacts_saved,
        "found": compilation_counter.num_compiled_artifacts_loaded,
        "attention": sorted({_attention(layer) for layer in layers if hasattr(layer, "impl")}),
    }


def _attention(layer: Any) -> str:
    """What attends: a backend of vLLM by its name, ours by its kind."""
    return str(getattr(layer.impl, "kind", None) or layer.attn_backend.get_name())


def _answer(output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "token_ids": list(completion.token_ids),
        "logprobs": [
            step[token].logprob for step, token in zip(completion.logprobs, completion.token_ids, strict=True)
        ],
        "num_cached_tokens": output.num_cached_tokens,
        "posenc": (output.kv_transfer_params or {}).get("posenc"),
    }


def main() -> None:
    """Run the job that the command line names."""
    run_job(json.loads(pathlib.Path(sys.argv[1]).read_text()))


if __name__ == "__main__":
    main()
