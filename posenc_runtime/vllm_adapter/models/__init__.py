"""Models of ours inside vLLM."""

from __future__ import annotations

_registered = False


def register() -> None:
    """Let vLLM find our architectures, and transformers their configurations."""
    global _registered
    if _registered:
        return
    _registered = True
    from vllm.model_executor.models import ModelRegistry

    from posenc_runtime.zoo import model

    model.register()
    ModelRegistry.register_model("PosencForCausalLM", f"{__name__}.decoder:PosencForCausalLM")
