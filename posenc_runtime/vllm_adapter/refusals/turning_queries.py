"""Refuses settings that contradict attention that turns queries; everything else is as in stock vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.contract.attention_choice import choice_of
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.refusals.turning_backends import is_on_cuda, refuse_on_cuda

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

    from posenc_runtime.encodings.far_pages import FarPages
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
        _refuse_axes(rope_type, model)
    if model.is_encoder_decoder:
        raise _refusal(rope_type, "a decoder", "an encoder with a decoder", "keys of an encoder have no positions")
    choice = choice_of(vllm_config)
    if choice is not None and choice.fused_rotary == "on":
        raise Unsupported(
            f"attention.fused_rotary must be auto or off where scaling.rope_type is {rope_type}, got on: keys stay as "
            "vLLM caches them"
        )
    # Where layers have recurrent states, vLLM makes blocks larger once it has loaded the model: a multiple of what the
    # user has said.
    cache = vllm_config.cache_config
    grows = model.is_hybrid and not cache.user_specified_block_size
    pages = pages_of(deployment, None if grows else cache.block_size)
    if on_cuda:
        refuse_on_cuda(vllm_config, rope_type, pages.page)


def pages_of(deployment: Deployment, block_size: int | None) -> FarPages:
    """The deployment's pages.

    Args:
        block_size: of the KV cache, tokens; None or 0 where vLLM has not chosen it.

    Raises:
        Unsupported: when a page is no multiple of a block; the message names the setting.
    """
    try:
        return deployment.pages(block_size or None)
    except ValueError as error:
        raise Unsupported(f"scaling.{error}") from None


def _refuse_axes(rope_type: str, model: ModelConfig) -> None:
    """Check a model with M-RoPE: tokens of images, videos and audio are at other positions than text's.

    Raises:
        Unsupported: when vLLM takes any of these.
    """
    if not model.is_multimodal_model or model.multimodal_config is None:
        return
    where = f"where scaling.rope_type is {rope_type} and positions are on several axes (M-RoPE)"
    if not model.multimodal_config.language_model_only:
        raise Unsupported(
            f"engine.language_model_only must be true {where}, because far pixels have no distance in tokens: set it, "
            "or choose another rope_type"
        )
    if model.multimodal_config.enable_mm_embeds:
        raise Unsupported(
            f"engine.enable_mm_embeds must be false {where}, because embeddings of images have no distance in tokens. "
            "vLLM sets it for a KV connector that reads keys: leave the connector and the setting out"
        )


def _refusal(rope_type: str, needs: str, has: str, reason: str) -> Unsupported:
    return Unsupported(
        f"scaling.rope_type {rope_type} needs {needs}, got {has}: {reason}. Choose another rope_type, or auto"
    )
