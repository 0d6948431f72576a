"""Requests with a seed, on vLLM's CPU runner, whose prompts take more than one step.

In every step vLLM samples a token for every request, and discards the token if the prompt is not complete. It then sets
the request's generator back by an offset, so that an answer does not depend on the number of steps of its prompt
(``GPUModelRunner._bookkeeping_sync``). Generators on the CPU have no offset: asking for it raises, and the engine ends.
Here a token that vLLM will discard is not sampled from the request's generator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from posenc_runtime.vllm_adapter import releases


def keep_seeds() -> None:
    """Make the CPU runner of this process leave the generators of incomplete prompts alone. Decision 40.

    Raises:
        IncompatibleVllm: when the runner lacks an attribute that this function uses.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    releases.verify_cpu_runner()
    CPUModelRunner.sample_tokens = sample_tokens


def sample_tokens(self: Any, grammar_output: Any) -> Any:
    """The runner's ``sample_tokens``, without the generators of requests whose prompts are not complete."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    generators = self.input_batch.generators  # by row; rows without one draw from the process's own
    if not generators:
        return GPUModelRunner.sample_tokens(self, grammar_output)
    unfinished = np.flatnonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])
    kept = {row: generators.pop(row) for row in unfinished.tolist() if row in generators}
    try:
        return GPUModelRunner.sample_tokens(self, grammar_output)
    finally:
        generators.update(kept)
