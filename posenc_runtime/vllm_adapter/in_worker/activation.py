"""Makes Posenc known to a process of an engine that uses it, before the process configures or builds anything."""

from __future__ import annotations

import functools


@functools.cache
def activate() -> None:
    """Check vLLM, and register our rotary embeddings, attention backends and models in this process.

    Raises:
        IncompatibleVllm: when this vLLM is not one that we were written for.
    """
    from posenc_runtime.vllm_adapter import releases
    from posenc_runtime.vllm_adapter.checkpoint import own_models
    from posenc_runtime.vllm_adapter.in_worker import attention
    from posenc_runtime.vllm_adapter.in_worker.rotary import registration

    releases.verify()
    registration.register()
    attention.register()
    own_models.register()
