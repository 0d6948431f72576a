"""An engine that is stepped by hand, so that every step can be timed while one of its requests crosses.

``{"others": [[...], ...], "long": [...], "new_tokens": 40}``: the others decode for as long as it takes; then the long
request comes, and is followed from its first token to its last.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from tests.benchmarks.engine_worker import serve

_numbers = itertools.count()


def _run(llm: Any, message: dict[str, Any]) -> dict[str, Any]:
    engine = llm.llm_engine
    others = [_add(engine, prompt, max_tokens=None) for prompt in message["others"]]
    while others and engine.has_unfinished_requests():
        if all(_step(engine).get(one) for one in others):
            break
    began = time.perf_counter()
    long = _add(engine, message["long"], max_tokens=message["new_tokens"])
    seen: dict[str, Any] = {}
    while long not in seen:
        seen = _step(engine)
    first_token_seconds = time.perf_counter() - began
    seconds, tokens, output = [], [], seen[long]
    while not output.finished:
        step_began = time.perf_counter()
        seen = _step(engine)
        seconds.append(time.perf_counter() - step_began)
        output = seen.get(long, output)
        tokens.append(len(output.outputs[0].token_ids))
    engine.abort_request(others, internal=False)
    while engine.has_unfinished_requests():
        _step(engine)
    return {
        "first_token_seconds": first_token_seconds,
        "cached_tokens": output.num_cached_tokens,
        "step_seconds": seconds,
        "tokens_after_step": tokens,
        "speeds": [speed for speed in llm.collective_rpc("posenc_speed") if speed],
        "posenc": (output.kv_transfer_params or {}).get("posenc"),
    }


def _add(engine: Any, prompt: list[int], max_tokens: int | None) -> str:
    """Add a request; one that does not say how much it wants decodes until it is aborted."""
    from vllm import SamplingParams

    request_id = f"bench-{next(_numbers)}"
    length = engine.model_config.max_model_len - len(prompt) if max_tokens is None else max_tokens
    engine.add_request(
        request_id,
        {"prompt_token_ids": prompt},
        SamplingParams(max_tokens=length, temperature=0, ignore_eos=True, detokenize=False),
    )
    return request_id


def _step(engine: Any) -> dict[str, Any]:
    return {output.request_id: output for output in engine.step()}


if __name__ == "__main__":
    serve(_run)
