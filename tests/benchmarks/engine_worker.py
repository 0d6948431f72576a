"""One vLLM engine behind a pipe: a line of JSON comes in on stdin, a line of JSON goes out on stdout.

The first line says what to start: ``{"model": ..., "arguments": {...}, "worker_cores": [1]}``. Every further one is a
batch: ``{"prompts": [[...], ...], "max_tokens": 64}``. The end of stdin is the end of the engine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import psutil


def serve(run: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
    """Start the engine and answer every message with what ``run(llm, message)`` returns."""
    answers = _take_stdout()
    job = json.loads(sys.stdin.readline())

    from vllm import LLM

    llm = LLM(job["model"], **job["arguments"])
    if job["worker_cores"]:
        _leave_cores(set(job["worker_cores"]))
    _say(answers, {"runs": _how_it_runs(llm.llm_engine.vllm_config)})
    for line in sys.stdin:
        _say(answers, run(llm, json.loads(line)))


def _how_it_runs(vllm_config: Any) -> dict[str, Any]:
    """What vLLM may have chosen otherwise than it was asked, as far as its configuration says."""
    compilation = vllm_config.compilation_config
    return {
        "model_runner": 2 if vllm_config.use_v2_model_runner else 1,
        "async_scheduling": bool(vllm_config.scheduler_config.async_scheduling),
        "compilation_mode": compilation.mode.name,
        "cudagraph_mode": compilation.cudagraph_mode.name,
        "num_cudagraph_sizes": len(compilation.cudagraph_capture_sizes or []),
    }


def _take_stdout() -> TextIO:
    """Keep stdout for answers: vLLM's processes and libraries print where they like, from now on to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _run(llm: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Generate exactly ``max_tokens`` tokens for every prompt, and say how long all of it took."""
    from vllm import SamplingParams

    parameters = SamplingParams(max_tokens=batch["max_tokens"], temperature=0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in batch["prompts"]]
    began = time.perf_counter()
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    seconds = time.perf_counter() - began
    said = [(output.kv_transfer_params or {}).get("posenc") for output in outputs]
    return {
        "seconds": seconds,
        "prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
        "cached_tokens": sum(output.num_cached_tokens or 0 for output in outputs),
        "generated_tokens": sum(len(output.outputs[0].token_ids) for output in outputs),
        "scales": sorted({one["scale"] for one in said if one}),
    }


def _leave_cores(worker_cores: set[int]) -> None:
    """Move every thread that OpenMP did not bind to the workers' cores off them.

    vLLM binds the threads that compute. The scheduler polls for their results without sleeping, and must not do so
    on their core.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    others = os.sched_getaffinity(0) - worker_cores
    if not others:
        return
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            for thread in process.threads():
                if not os.sched_getaffinity(thread.id) <= worker_cores:
                    os.sched_setaffinity(thread.id, others)
        except (psutil.NoSuchProcess, ProcessLookupError):
            # a thread that ended since it was listed
            continue


if __name__ == "__main__":
    serve(_run)
