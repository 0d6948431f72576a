"""Whether attention rotates queries and keys itself: one answer for a whole engine, the same in all its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.checkpoint.model_code.handover import obstacle
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_rules import other_bases
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import condition_of_rotating
from posenc_runtime.vllm_adapter.checkpoint.model_code.rope_parameters import has_several
from posenc_runtime.vllm_adapter.contract.active import deployment_of
from posenc_runtime.vllm_adapter.contract.attention_choice import choice_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Compute capabilities of NVIDIA GPUs on which auto is on: those where `make bench-gpu ENGINE_ARGS="--only fused"` has
# measured it to be at least as fast, end to end. Decision 44.
MEASURED_FASTER: frozenset[tuple[int, int]] = frozenset()

_BACKENDS = ("FLASH_ATTN", "TRITON_ATTN")
_CACHE_DTYPES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3")


def is_fused(vllm_config: VllmConfig | None) -> bool:
    """Whether attention rotates queries and keys in this engine.

    Raises:
        ValueError: when ``additional_config`` is refused.
    """
    choice, deployment = choice_of(vllm_config), deployment_of(vllm_config)
    if vllm_config is None or choice is None or deployment is None or not deployment.scales_keys:
        return False
    if choice.fused_rotary == "auto":
        return _capability() in MEASURED_FASTER and reason_against_rotating(vllm_config) is None
    return choice.fused_rotary == "on"


def reason_against_rotating(vllm_config: VllmConfig) -> str | None:
    """Why attention cannot rotate in this engine, worded to follow "because"; None if it can."""
    deployment, choice = deployment_of(vllm_config), choice_of(vllm_config)
    if _capability() is None:
        return (
            "the kernel that rotates and writes the KV cache needs an NVIDIA GPU, and this vLLM runs on another device"
        )
    if deployment is None or not deployment.scales_keys:
        return "this model has no rotary embeddings"
    if vllm_config.model_config.use_mla:
        return "this model has multi-head latent attention, whose rotated part is cached behind a latent"
    if choice is not None and choice.takes_ours:
        return f"layers use attention of posenc (attention.backend {choice.backend}), which does not rotate"
    if vllm_config.speculative_config is not None:
        return "tokens are drafted (speculative_config), and no test shows that a drafter's layers then rotate"
    asked = vllm_config.attention_config.backend
    if asked is not None and asked.name not in _BACKENDS:
        return f"only {' and '.join(_BACKENDS)} rotate, and engine.attention_backend is {asked.name}"
    if vllm_config.attention_config.backend_per_kind:
        return "attention_config.backend_per_kind gives layers different backends"
    if vllm_config.cache_config.cache_dtype not in _CACHE_DTYPES:
        return f"kv_cache_dtype is {vllm_config.cache_config.cache_dtype}, and not one of {', '.join(_CACHE_DTYPES)}"
    if (getattr(vllm_config.quant_config, "kv_cache_scheme", None) or {}).get("strategy") == "attn_head":
        return (
            "the checkpoint quantises its KV cache with a scale for each head, and the kernel takes one for all heads"
        )
    model = vllm_config.model_config
    if model.uses_mrope:
        return "its tokens have a position on each of several axes (M-RoPE)"
    if has_several(model.hf_text_config):
        return "its layers have different rotary embeddings"
    for architecture in model.architectures:
        if other := other_bases(model.hf_text_config, architecture):
            return f"its layers have different rotary embeddings ({other})"
        if condition := condition_of_rotating(architecture):
            return f"{architecture} of vLLM rotates on the condition `{condition}`"
        if in_the_way := obstacle(architecture):
            return (
                f"{architecture} of vLLM must pass rotated queries and keys to attention unchanged, which its source "
                f"does not show: {in_the_way}"
            )
    return None


def _capability() -> tuple[int, int] | None:
    """Compute capability of the GPU; None on another device."""
    from vllm.platforms import current_platform

    capability = current_platform.get_device_capability() if current_platform.is_cuda() else None
    return None if capability is None else (capability.major, capability.minor)
