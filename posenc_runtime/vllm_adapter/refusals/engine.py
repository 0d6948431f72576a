"""Refuses, at start-up, an engine that contradicts its deployment; the error names the setting and the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.checkpoint.model_code.model_rules import caches_latents
from posenc_runtime.vllm_adapter.checkpoint.model_code.rope_parameters import PROPORTIONAL, scaled_rope_parameters
from posenc_runtime.vllm_adapter.checkpoint.scalable_checkpoints import (
    reason_for_scale_1_alone,
    refuse_checkpoint,
    refuse_method,
    rotates,
)
from posenc_runtime.vllm_adapter.contract.active import deployment_of
from posenc_runtime.vllm_adapter.contract.attention_choice import choice_of
from posenc_runtime.vllm_adapter.contract.cached_keys import are_float8
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import FIT_INTO_MEMORY, LMCACHE
from posenc_runtime.vllm_adapter.refusals.arguments import (
    DECODE_CONTEXT,
    DIFFUSION,
    ELASTIC,
    POOLING,
    PREFILL_CONTEXT,
    SPECULATIVE,
    UBATCHES,
    refuse_connector,
    refuse_unshown,
)
from posenc_runtime.vllm_adapter.refusals.drafters import refuse_scaled_drafter, refuse_turning_drafter
from posenc_runtime.vllm_adapter.refusals.handing_over import refuse_handing_over
from posenc_runtime.vllm_adapter.refusals.moving_requests import refuse_moving_requests
from posenc_runtime.vllm_adapter.refusals.rotating_attention import reason_against_rotating
from posenc_runtime.vllm_adapter.refusals.shared_caches import (
    refuse_drafts_from_others,
    refuse_shared_cache,
    refuse_unshown_keys,
)
from posenc_runtime.vllm_adapter.refusals.tiers import hands_over, refuse_tiers, tiers_of
from posenc_runtime.vllm_adapter.refusals.turning_queries import refuse_turning

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

    from posenc_runtime.kv.deployment import Deployment


def refuse_unsupported(vllm_config: VllmConfig) -> None:
    """Check an engine's whole configuration.

    Raises:
        Unsupported: when it cannot be served; the message names the setting or the architecture, and the reason.
    """
    deployment, model = deployment_of(vllm_config), vllm_config.model_config
    _refuse_settings(vllm_config, deployment)
    if deployment is None or deployment.rotates or rotates(model.hf_text_config, model.architectures):
        refuse_checkpoint(model.hf_text_config, model.architectures, is_scaled=not _stays_stock(model, deployment))
        if deployment is not None and deployment.rotates:
            own = scaled_rope_parameters(model.hf_text_config)["rope_type"]
            refuse_method(deployment.rope_type, "default" if own == PROPORTIONAL else own)
    choice = choice_of(vllm_config)
    if choice is not None and choice.fused_rotary == "on" and (reason := reason_against_rotating(vllm_config)):
        raise Unsupported(f"attention.fused_rotary must be auto or off, got on, because {reason}")


def _stays_stock(model: ModelConfig, deployment: Deployment | None) -> bool:
    """Whether a model that rotates is served with vLLM's own rotary embeddings."""
    if deployment is None or deployment.rotates or model.hf_text_config is not model.hf_config:
        return False
    trained = deployment.original_max_position_embeddings
    return reason_for_scale_1_alone(model.hf_text_config, model.architectures, trained) is not None


def _refuse_settings(vllm_config: VllmConfig, deployment: Deployment | None) -> None:
    model, parallel, transfer = vllm_config.model_config, vllm_config.parallel_config, vllm_config.kv_transfer_config
    turning = deployment if deployment is not None and deployment.turns_queries else None
    if turning:
        refuse_shared_cache(transfer, turning.rope_type)
        refuse_drafts_from_others(transfer, vllm_config.speculative_config is not None, turning.rope_type)
        unshown = {"a float8 cache": are_float8(vllm_config), "a model with recurrent layers": model.is_hybrid}
        refuse_unshown_keys(transfer, unshown, turning.rope_type)
        refuse_turning_drafter(vllm_config, turning.rope_type)
    else:
        refuse_connector(getattr(transfer, "kv_connector", None), getattr(transfer, "kv_role", None))
        refuse_tiers(transfer)
    if deployment is not None:
        # Only where the memory says how long requests may be do they end before the deployment's length.
        longest, is_fitted = deployment.max_model_len, model.original_max_model_len == FIT_INTO_MEMORY
        if model.max_model_len > longest or (model.max_model_len < longest and not is_fitted):
            raise Unsupported(
                f"max_model_len must be additional_config.posenc.max_model_len {longest}, which the largest scale "
                f"covers, got {model.max_model_len}: set both to the same length"
            )
        if hands_over(transfer) and not turning:
            refuse_handing_over(vllm_config, deployment)
        if vllm_config.speculative_config is not None and tiers_of(transfer):
            raise Unsupported(
                "speculative_config must be left out where the KV cache is offloaded or handed over and requests are "
                "scaled: no test shows that a drafter's blocks are stored or sent before they are turned"
            )
        if are_float8(vllm_config) and any(tier.get("kv_connector") == LMCACHE for tier in tiers_of(transfer)):
            raise Unsupported(
                f"kv_cache_dtype must not be float8 where {LMCACHE} is a tier of scaled requests, got "
                f"{vllm_config.cache_config.cache_dtype}: whether keys or queries carry the attention factor depends "
                "on on_crossing, and the names of blocks that engines share do not say it. Set it to auto"
            )
        if deployment.reuses_prefixes and tiers_of(transfer):
            raise Unsupported(
                "prefix_reuse must be exact or continue where the KV cache is offloaded, got rerotate: no test shows "
                "that copies of a prefix and loaded blocks go together"
            )
        if deployment.turns_queries:
            refuse_turning(vllm_config, deployment)
        else:
            refuse_moving_requests(vllm_config, deployment)
            if deployment.scales_keys:
                refuse_scaled_drafter(vllm_config)
    latents = any(caches_latents(model.hf_text_config, architecture) for architecture in model.architectures)
    refuse_unshown(
        {
            "encoder-decoder models": model.is_encoder_decoder,
            POOLING: model.runner_type != "generate",
        },
        "serve it with vLLM, without posenc",
    )
    refuse_unshown(
        {"multi-head latent attention (MLA) that vLLM runs without latents": latents and not model.use_mla},
        "let VLLM_MLA_DISABLE be 0",
    )
    refuse_unshown(
        {
            PREFILL_CONTEXT: parallel.prefill_context_parallel_size > 1,
            DECODE_CONTEXT: parallel.decode_context_parallel_size > 1,
            UBATCHES: parallel.use_ubatching,
            ELASTIC: parallel.enable_elastic_ep,
            SPECULATIVE: vllm_config.speculative_config is not None and (deployment is None or not deployment.rotates),
            DIFFUSION: vllm_config.diffusion_config is not None,
        },
    )


def refuse_block_size(vllm_config: VllmConfig) -> None:
    """Check the size of KV blocks on the CPU. vLLM itself checks it only after it has loaded the weights.

    A size that the user does not set is not checked: vLLM chooses one that its attention backend supports.

    Raises:
        Unsupported: when the backend does not support the size; the message says what it must be a multiple of.
    """
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if not (current_platform.is_cpu() and vllm_config.cache_config.user_specified_block_size):
        return
    if vllm_config.model_config.use_mla:  # vLLM sets the size of blocks of latents itself
        return
    block_size = vllm_config.cache_config.block_size
    for allowed in CPUAttentionBackend.get_supported_kernel_block_sizes():
        if block_size % allowed.base:
            raise Unsupported(f"block_size must be a multiple of {allowed.base} on the CPU, got {block_size}")
