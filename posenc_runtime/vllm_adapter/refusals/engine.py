"""What a deployment can be combined with. Anything else is refused at start-up; the error names setting and reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.active import deployment_of
from posenc_runtime.vllm_adapter.attention.choice import choice_of
from posenc_runtime.vllm_adapter.attention.fused_rotary.asked import reason_against_rotating
from posenc_runtime.vllm_adapter.carried_names import CONNECTOR
from posenc_runtime.vllm_adapter.errors import Unsupported
from posenc_runtime.vllm_adapter.model_code.model_rules import caches_latents
from posenc_runtime.vllm_adapter.model_code.rope_parameters import PROPORTIONAL, scaled_rope_parameters
from posenc_runtime.vllm_adapter.refusals.checkpoint import refuse_checkpoint, refuse_method, rotates
from posenc_runtime.vllm_adapter.refusals.moving_requests import refuse_moving_requests

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from posenc_runtime.kv.deployment import Deployment


def refuse_unsupported(vllm_config: VllmConfig) -> None:
    """Check an engine's whole configuration.

    Raises:
        Unsupported: when it cannot be served; the message names the setting or the architecture, and the reason.
    """
    deployment, model = deployment_of(vllm_config), vllm_config.model_config
    _refuse_settings(vllm_config, deployment)
    if deployment is None or deployment.rotates or rotates(model.hf_text_config):
        refuse_checkpoint(model.hf_text_config, model.architectures)
        if deployment is not None and deployment.rotates:
            own = scaled_rope_parameters(model.hf_text_config)["rope_type"]
            refuse_method(deployment.rope_type, "default" if own == PROPORTIONAL else own)
    choice = choice_of(vllm_config)
    if choice is not None and choice.fused_rotary == "on" and (reason := reason_against_rotating(vllm_config)):
        raise Unsupported(f"attention.fused_rotary must be auto or off, got on, because {reason}")


def _refuse_settings(vllm_config: VllmConfig, deployment: Deployment | None) -> None:
    model, parallel, transfer = vllm_config.model_config, vllm_config.parallel_config, vllm_config.kv_transfer_config
    if vllm_config.cache_config.kv_offloading_size is not None:
        raise Unsupported(
            f"kv_offloading_size must be left out, got {vllm_config.cache_config.kv_offloading_size}: it "
            "replaces the KV connector of posenc, which gives blocks their scales"
        )
    if transfer is None or transfer.kv_connector != CONNECTOR:
        raise Unsupported(
            f"additional_config.posenc needs kv_transfer_config.kv_connector to be {CONNECTOR}, got "
            f"{transfer.kv_connector if transfer else None}: without it no block gets its scale"
        )
    if transfer.kv_role != "kv_both":
        raise Unsupported(
            f"kv_transfer_config.kv_role must be kv_both, got {transfer.kv_role}: with prefill and decode in "
            "separate engines, each would choose a request's scale from a different length"
        )
    if deployment is not None:
        if model.max_model_len > deployment.max_model_len:
            raise Unsupported(
                f"max_model_len must be at most additional_config.posenc.max_model_len {deployment.max_model_len}, "
                f"which the largest scale covers, got {model.max_model_len}: set both to the same length"
            )
        refuse_moving_requests(vllm_config, deployment)
    alone, left_out = "serve it with vLLM, without posenc", "leave that setting out"
    latents = any(caches_latents(model.hf_text_config, architecture) for architecture in model.architectures)
    refusals = [
        ("encoder-decoder models", model.is_encoder_decoder, alone),
        ("pooling and draft models", model.runner_type != "generate", alone),
        (
            "multi-head latent attention (MLA) that vLLM runs without latents",
            latents and not model.use_mla,
            "let VLLM_MLA_DISABLE be 0",
        ),
        ("prefill_context_parallel_size above 1", parallel.prefill_context_parallel_size > 1, left_out),
        ("decode_context_parallel_size above 1", parallel.decode_context_parallel_size > 1, left_out),
        ("enable_dbo, or ubatch_size above 1", parallel.use_ubatching, left_out),
        ("enable_elastic_ep", parallel.enable_elastic_ep, left_out),
        ("speculative_config", vllm_config.speculative_config is not None, left_out),
        ("diffusion_config", vllm_config.diffusion_config is not None, left_out),
    ]
    for what, is_asked, advice in refusals:
        if is_asked:
            raise Unsupported(
                f"posenc does not serve {what}, because no test shows that every key gets its request's scale: {advice}"
            )


def refuse_block_size(vllm_config: VllmConfig) -> None:
    """Check the size of KV blocks on the CPU before vLLM does, which is only after it has loaded the weights.

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
