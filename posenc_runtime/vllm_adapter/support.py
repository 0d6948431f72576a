"""What a deployment can be combined with: everything else is refused at start-up, by name and with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posenc_runtime.encodings.scaling import available, method, own_rope_types
from posenc_runtime.vllm_adapter.active import deployment_of
from posenc_runtime.vllm_adapter.attention.choice import choice_of
from posenc_runtime.vllm_adapter.attention.fused_rotary import reason_against_rotating
from posenc_runtime.vllm_adapter.attention.needs import has_alibi
from posenc_runtime.vllm_adapter.channel import CONNECTOR, SCHEDULER
from posenc_runtime.vllm_adapter.model_rules import caches_latents, reason_against_scaling, reason_against_turning
from posenc_runtime.vllm_adapter.model_source import reads_prompts_both_ways
from posenc_runtime.vllm_adapter.refusals import Refused
from posenc_runtime.vllm_adapter.scheduler_choice import needs_ours

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from posenc_runtime.kv.deployment import Deployment


_TURNED_DTYPES = ("auto", "float16", "bfloat16")


class Unsupported(Refused):
    """The engine's configuration cannot be combined with per-request scales."""


def refuse_unsupported(vllm_config: VllmConfig) -> None:
    """Check an engine's whole configuration.

    Raises:
        Unsupported: naming the setting or the architecture, and the reason.
    """
    deployment, model = deployment_of(vllm_config), vllm_config.model_config
    _refuse_settings(vllm_config, deployment)
    if deployment is None or deployment.rotates or rotates(model.hf_text_config):
        refuse_checkpoint(model.hf_text_config, model.architectures)
        if deployment is not None and deployment.rotates:
            refuse_method(deployment.rope_type, model.hf_text_config.rope_parameters["rope_type"])
    choice = choice_of(vllm_config)
    if choice is not None and choice.fused_rotary == "on" and (reason := reason_against_rotating(vllm_config)):
        raise Unsupported(f"attention.fused_rotary must be auto or off, got on, because {reason}")


def _refuse_settings(vllm_config: VllmConfig, deployment: Deployment | None) -> None:
    model, parallel, transfer = vllm_config.model_config, vllm_config.parallel_config, vllm_config.kv_transfer_config
    if vllm_config.cache_config.kv_offloading_size is not None:
        raise Unsupported(
            f"kv_offloading_size must be left out, got {vllm_config.cache_config.kv_offloading_size}: its connector "
            "would take the place of posenc's, which gives blocks their scale"
        )
    if transfer is None or transfer.kv_connector != CONNECTOR:
        raise Unsupported(
            f"additional_config.posenc needs kv_transfer_config.kv_connector to be {CONNECTOR}, got "
            f"{transfer.kv_connector if transfer else None}: without it no block is ever given its scale"
        )
    if transfer.kv_role != "kv_both":
        raise Unsupported(
            f"kv_transfer_config.kv_role must be kv_both, got {transfer.kv_role}: with prefill and decode apart, the "
            "two sides would choose a request's scale from different lengths"
        )
    if deployment is not None:
        if model.max_model_len > deployment.max_model_len:
            raise Unsupported(
                f"max_model_len must be at most additional_config.posenc.max_model_len {deployment.max_model_len}, "
                f"which the largest scale covers, got {model.max_model_len}: set them alike"
            )
        _refuse_moving_requests(vllm_config, deployment)
    refusals = {
        "encoder-decoder models": model.is_encoder_decoder,
        "multimodal models": model.is_multimodal_model,
        "multi-head latent attention (MLA)": model.use_mla
        or any(caches_latents(model.hf_text_config, architecture) for architecture in model.architectures),
        "models with recurrent layers": model.is_hybrid,
        "pooling and draft models": model.runner_type != "generate",
        "models that run on vLLM's Transformers backend, which rotates by itself": model.using_transformers_backend(),
        "prefill_context_parallel_size above 1": parallel.prefill_context_parallel_size > 1,
        "decode_context_parallel_size above 1": parallel.decode_context_parallel_size > 1,
        "enable_dbo, or ubatch_size above 1": parallel.use_ubatching,
        "enable_elastic_ep": parallel.enable_elastic_ep,
        "speculative_config": vllm_config.speculative_config is not None,
        "diffusion_config": vllm_config.diffusion_config is not None,
    }
    for what, asked in refusals.items():
        if asked:
            raise Unsupported(f"posenc does not serve {what}: no test shows that every key gets its request's scale")


def _refuse_moving_requests(vllm_config: VllmConfig, deployment: Deployment) -> None:
    """What stands in the way of requests, or of prefixes, that go from one scale to another."""
    scheduler = vllm_config.scheduler_config
    needs = needs_ours(deployment, scheduler.policy)
    if needs is None:
        return
    if scheduler.scheduler_cls != SCHEDULER:
        raise Unsupported(
            f"scheduler_cls must be {SCHEDULER} where {needs.where}, got {scheduler.scheduler_cls}: without it "
            f"{needs.otherwise}"
        )
    if not deployment.changes_scales:
        return
    if scheduler.async_scheduling and vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise Unsupported(
            f"async_scheduling must be off where pipeline_parallel_size is above 1 and {needs.where}: no test shows "
            "that every stage of the pipeline then has a crossing request's keys (or set on_crossing to pin and "
            "prefix_reuse to exact)"
        )
    if vllm_config.aux_output_config.enabled:
        raise Unsupported(
            f"enable_return_routed_experts must be false where {needs.where}: what vLLM keeps of a request's experts "
            "is lost when the request crosses (or set on_crossing to pin and prefix_reuse to exact)"
        )
    for architecture in vllm_config.model_config.architectures:
        if reads_prompts_both_ways(architecture):
            raise Unsupported(
                f"on_crossing must be pin, and prefix_reuse exact, for {architecture}, whose prompts are read in both "
                f"directions, got {deployment.on_crossing} and {deployment.prefix_reuse}: an answer that is read again "
                "as a prompt becomes another one, and the beginning of a prompt is nothing by itself"
            )
    if deployment.reuses_prefixes and not vllm_config.cache_config.enable_prefix_caching:
        raise Unsupported(
            "prefix_reuse must be exact where enable_prefix_caching is false, got rerotate: there is no prefix to reuse"
        )
    if deployment.rerotates:
        _refuse_rerotation(vllm_config)


def _refuse_rerotation(vllm_config: VllmConfig) -> None:
    choice = choice_of(vllm_config)
    if choice is not None and choice.takes_ours:
        raise Unsupported(
            f"attention.backend must be auto or stock where keys are re-rotated, got {choice.backend}: our kernels may "
            "lay keys out otherwise than vLLM does. Set on_crossing to recompute or pin, and prefix_reuse to exact"
        )
    if vllm_config.cache_config.cache_dtype not in _TURNED_DTYPES:
        raise Unsupported(
            f"kv_cache_dtype {vllm_config.cache_config.cache_dtype} cannot be re-rotated: a turned key can outgrow the "
            "scale that it was quantised with. Set on_crossing to recompute or pin, and prefix_reuse to exact"
        )
    if window := vllm_config.model_config.get_sliding_window():
        is_idle = vllm_config.model_config.max_model_len <= window
        raise Unsupported(
            "re-rotation needs layers that keep all keys of a request, but this model has a sliding window of "
            f"{window} tokens: set on_crossing to recompute or pin, and prefix_reuse to exact"
            + ("; or, as no request is longer than that, engine.disable_sliding_window to true" if is_idle else "")
        )
    for architecture in vllm_config.model_config.architectures:
        if reason := reason_against_turning(vllm_config.model_config.hf_text_config, architecture):
            raise Unsupported(
                f"re-rotation needs {reason}: set on_crossing to recompute or pin, and prefix_reuse to exact"
            )


def refuse_block_size(vllm_config: VllmConfig) -> None:
    """Check the size of KV blocks on the CPU, which vLLM looks at when weights are loaded already.

    One that nobody gave is chosen by then, by what attends.

    Raises:
        Unsupported: naming the size, and what it must be a multiple of.
    """
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if not (current_platform.is_cpu() and vllm_config.cache_config.user_specified_block_size):
        return
    block_size = vllm_config.cache_config.block_size
    for allowed in CPUAttentionBackend.get_supported_kernel_block_sizes():
        if block_size % allowed.base:
            raise Unsupported(f"block_size must be a multiple of {allowed.base} on the CPU, got {block_size}")


def refuse_lora_and_quantised(vllm_config: VllmConfig) -> None:
    """Refuse what a model that loads weights as they were trained cannot do.

    Raises:
        Unsupported: naming the setting and its value.
    """
    architectures = ", ".join(vllm_config.model_config.architectures)
    if vllm_config.quant_config is not None:
        raise Unsupported(
            f"quantization must be left out for {architectures}, and weights must not be quantised, got "
            f"{vllm_config.model_config.quantization}: posenc loads them as they were trained"
        )
    if vllm_config.lora_config is not None:
        raise Unsupported(
            f"enable_lora must be false for {architectures}, got true: posenc knows no adapters for its weights; "
            "merge them into the checkpoint"
        )


def refuse_method(rope_type: str, own: str) -> None:
    """Check that a method is made for a checkpoint's own rotation.

    Args:
        own: the checkpoint's own ``rope_type``.

    Raises:
        Unsupported: naming both rope types.
    """
    needed = method(rope_type).own_rope_type
    if own != needed:
        raise Unsupported(
            f"rope_type {rope_type} is for checkpoints whose own rope_type is {needed}, but this one's is {own}: "
            f"choose one of {', '.join(name for name in available() if method(name).own_rope_type == own)}"
        )


def rotates(hf_text_config: Any) -> bool:
    """Whether a checkpoint's configuration says that its model has rotary embeddings.

    Falcon's has ``rope_parameters`` beside ALiBi, too, which is then all that its layers have.
    """
    return bool(getattr(hf_text_config, "rope_parameters", None)) and not has_alibi(hf_text_config)


def refuse_checkpoint(hf_text_config: Any, architectures: list[str]) -> None:
    """Check what a checkpoint's own configuration says.

    Raises:
        Unsupported: naming the architecture or the rope type, and the reason.
    """
    rope_parameters = getattr(hf_text_config, "rope_parameters", None) or {}
    if not rotates(hf_text_config):
        has = "ALiBi" if has_alibi(hf_text_config) else "no rope_parameters"
        raise Unsupported(
            f"scaling needs a model with rotary embeddings, but the configuration of {', '.join(architectures)} has "
            f"{has}"
        )
    if "rope_type" not in rope_parameters:
        raise Unsupported(
            f"posenc serves models with one rotary embedding, got one for each of {', '.join(sorted(rope_parameters))} "
            "in rope_parameters"
        )
    rope_type = rope_parameters["rope_type"]
    if rope_type not in own_rope_types():
        raise Unsupported(
            f"posenc scales checkpoints whose own rope_type is one of {', '.join(own_rope_types())}, got {rope_type}: "
            "its frequencies are scaled already. If that was added to its config.json to serve longer requests, take "
            "it out, and let the section scaling say it"
        )
    # Of the first vLLM asks whether it is there, whatever it says.
    for key, is_asked in (
        ("mrope_section", "mrope_section" in rope_parameters),
        ("use_fope", rope_parameters.get("use_fope")),
    ):
        if is_asked:
            raise Unsupported(
                f"posenc does not scale rope_parameters with {key}: its positions are not one number a token"
            )
    if (chunks := getattr(hf_text_config, "dual_chunk_attention_config", None)) is not None:
        raise Unsupported(
            f"posenc does not scale checkpoints with dual_chunk_attention_config, got {chunks}: their queries are "
            "rotated several times, by positions within chunks. To do without, give hf_overrides "
            "{dual_chunk_attention_config: null}, and original_max_position_embeddings as it was trained"
        )
    for architecture in architectures:
        if reason := reason_against_scaling(hf_text_config, architecture):
            raise Unsupported(reason)
