"""One Llama-like decoder for every position encoding, as a transformers model: ``model_type`` "posenc"."""

from __future__ import annotations


def register() -> None:
    """Let ``AutoConfig`` and ``AutoModelForCausalLM`` know the architecture. Calling it again changes nothing."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from posenc_runtime.decoder.config import PosencConfig
    from posenc_runtime.decoder.decoder import PosencForCausalLM

    AutoConfig.register(PosencConfig.model_type, PosencConfig, exist_ok=True)
    AutoModelForCausalLM.register(PosencConfig, PosencForCausalLM, exist_ok=True)
