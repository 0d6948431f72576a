"""Requests with a seed, on vLLM's CPU runner, whose prompts take more than one step.

In every step vLLM draws a token for every request, and throws it away where the rest of a prompt is still to come. It
then sets the request's generator back by an offset, so that an answer does not depend on how many steps its prompt
took. Generators on the CPU have no offset: asking for it raises, and the engine is gone
(``GPUModelRunner._bookkeeping_sync``). Here what is thrown away is not drawn from the request's generator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from posenc_runtime.vllm_adapter import compat


def keep_seeds() -> None:
    """Have the CPU runner of this process leave the generators of unfinished prompts alone. Decision 40.

    Raises:
        IncompatibleVllm: when the runner lacks what this touches.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    compat.verify_cpu_runner()
    CPUModelRunner.sample_tokens = sample_tokens


def sample_tokens(self: Any, grammar_output: Any) -> Any:
    """The runner's, over generators of those whose prompts are at their end."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    generators = self.input_batch.generators  # by row; rows without one draw from the process's own
    unfinished = np.flatnonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])
    kept = {row: generators.pop(row) for row in unfinished.tolist() if row in generators}
    try:
        return GPUModelRunner.sample_tokens(self, grammar_output)
    finally:
        generators.update(kept)
