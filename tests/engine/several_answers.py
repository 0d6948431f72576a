"""An engine that says several answers to each prompt: drawn ones to a first batch, and beams to a second.

Beside the answers, it tells what is registered in it: its scheduler, its connector, and what its layers cache.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import LLM

NUM_ANSWERS = 3


def _drawn(llm: LLM, batch: list[Any]) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    parameters = [
        SamplingParams(n=NUM_ANSWERS, temperature=1.0, logprobs=0, max_tokens=max_tokens, ignore_eos=True)
        for _, max_tokens in batch
    ]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt, _ in batch], parameters, use_tqdm=False)
    return [_said(answer.token_ids, answer.logprobs) for output in outputs for answer in output.outputs]


def _beams(llm: LLM, batch: list[Any]) -> list[dict[str, Any]]:
    from vllm.sampling_params import BeamSearchParams

    said = []
    for max_tokens, alike in itertools.groupby(batch, key=lambda asked: asked[1]):
        prompts = [prompt for prompt, _ in alike]
        parameters = BeamSearchParams(beam_width=NUM_ANSWERS, max_tokens=max_tokens, ignore_eos=True)
        outputs = llm.beam_search([{"prompt_token_ids": prompt} for prompt in prompts], parameters)
        for prompt, output in zip(prompts, outputs, strict=True):
            said += [_said(beam.tokens[len(prompt) :], beam.logprobs) for beam in output.sequences]
    return said


def _said(token_ids: Any, logprobs: Any) -> dict[str, Any]:
    chosen = [step[token].logprob for step, token in zip(logprobs, token_ids, strict=True)]
    return {"token_ids": list(token_ids), "logprobs": chosen, "num_cached_tokens": 0, "posenc": None}


def _registered(llm: LLM) -> dict[str, Any]:
    vllm_config, core = llm.llm_engine.vllm_config, llm.llm_engine.engine_core.engine_core
    groups = core.scheduler.kv_cache_manager.kv_cache_config.kv_cache_groups
    return {
        "scheduler_cls": vllm_config.scheduler_config.scheduler_cls,
        "scheduler": type(core.scheduler).__module__,
        "kv_transfer_config": None if vllm_config.kv_transfer_config is None else "given",
        "connector": None if core.scheduler.connector is None else _name(type(core.scheduler.connector)),
        "kv_cache_specs": sorted({_name(type(group.kv_cache_spec)) for group in groups}),
    }


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def main() -> None:
    """Run the job that the command line names."""
    from vllm import LLM

    job = json.loads(pathlib.Path(sys.argv[1]).read_text())
    llm = LLM(job["model"], **job["arguments"])
    drawn, beams = job["batches"]
    result = {"answers": [_drawn(llm, drawn), _beams(llm, beams)], "registered": _registered(llm)}
    pathlib.Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
