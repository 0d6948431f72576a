"""Refuses settings that contradict attention that turns queries; everything else is as in stock vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.contract.attention_choice import choice_of
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.refusals.turning_backends import is_on_cuda, refuse_on_cuda

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from posenc_runtime.kv.deployment import Deployment


def refuse_turning(vllm_config: VllmConfig, deployment: Deployment) -> None:
    """Check an engine whose queries are turned when they read keys.

    Raises:
        Unsupported: when the model or a setting does not allow that; the message names it and the reason.
    """
    from vllm.platforms import current_platform

    rope_type, model = deployment.rope_type, vllm_config.model_config
    if not (on_cuda := is_on_cuda()) and not current_platform.is_cpu():
        has = f"vLLM for {current_platform.device_name}"
        raise _refusal(rope_type, "a CPU or an NVIDIA GPU", has, "no kernel turns queries there")
    if model.use_mla:
        raise _refusal(
            rope_type, "a model that caches keys", "multi-head latent attention", "latents have no positions"
        )
    if model.uses_mrope:
        raise _refusal(rope_type, "one position for each token", "M-RoPE", "images have positions on several axes")
    if model.is_encoder_decoder:
        raise _refusal(rope_type, "a decoder", "an encoder with a decoder", "keys of an encoder have no positions")
    choice = choice_of(vllm_config)
    if choice is not None and choice.fused_rotary == "on":
        raise Unsupported(
            f"attention.fused_rotary must be auto or off where scaling.rope_type is {rope_type}, got on: keys stay as "
            "vLLM caches them"
        )
    try:
        pages = deployment.pages(vllm_config.cache_config.block_size or None)
    except ValueError as error:
        raise Unsupported(f"scaling.{error}") from None
    if on_cuda:
        refuse_on_cuda(vllm_config, rope_type, pages.page)


def _refusal(rope_type: str, needs: str, has: str, reason: str) -> Unsupported:
    return Unsupported(
        f"scaling.rope_type {rope_type} needs {needs}, got {has}: {reason}. Choose another rope_type, or auto"
    )
