"""An engine whose requests are told what to say: ``{"requests": [{"prompt": [1], "forced": [2, 3], "free": 8}]}``.

Forced tokens are decoded one by one like any other, so that a text's logprobs can be measured while it grows in the
cache. They are taken before the forcing, as vLLM's raw logprobs are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from tests.benchmarks.engine_worker import serve

_FORCED = "forced"


class Forcing(AdapterLogitsProcessor):
    """Leaves a request no choice for its first tokens."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[[list[int], Tensor], Tensor] | None:
        forced = (params.extra_args or {}).get(_FORCED)
        if not forced:
            return None

        def force(output_ids: list[int], logits: Tensor) -> Tensor:
            if len(output_ids) < len(forced):
                logits.fill_(float("-inf"))
                logits[forced[len(output_ids)]] = 0
            return logits

        return force


def _run(llm: Any, message: dict[str, Any]) -> dict[str, Any]:
    requests = message["requests"]
    outputs = llm.generate(
        [{"prompt_token_ids": request["prompt"]} for request in requests],
        [
            SamplingParams(
                max_tokens=len(request["forced"]) + request["free"],
                temperature=0,
                ignore_eos=True,
                logprobs=0,
                extra_args={_FORCED: request["forced"]},
            )
            for request in requests
        ],
        use_tqdm=False,
    )
    return {"answers": [_answer(output) for output in outputs]}


def _answer(output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "token_ids": list(completion.token_ids),
        "logprobs": [
            step[token].logprob for step, token in zip(completion.logprobs, completion.token_ids, strict=True)
        ],
        "posenc": (output.kv_transfer_params or {}).get("posenc"),
    }


if __name__ == "__main__":
    serve(_run)
