"""Makes Posenc known to a process of an engine that uses it, before the process configures or builds anything."""

from __future__ import annotations

import functools


@functools.cache
def activate() -> None:
    """Check vLLM, and register our rotary embeddings, attention backends and models in this process.

    Raises:
        IncompatibleVllm: when this vLLM is not one that we were written for.
    """
    from posenc_runtime.vllm_adapter import attention, compat, models
    from posenc_runtime.vllm_adapter.rotary import registration

    compat.verify()
    registration.register()
    attention.register()
    models.register()
