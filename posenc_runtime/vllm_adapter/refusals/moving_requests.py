"""Which settings and models do not allow requests or prefixes to go from one scale to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.checkpoint.model_code.language_models import language_models
from posenc_runtime.vllm_adapter.checkpoint.model_code.later_changes import change_after_rotation
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import reads_prompts_both_ways
from posenc_runtime.vllm_adapter.contract.attention_choice import choice_of
from posenc_runtime.vllm_adapter.contract.cached_keys import OWN_SCALES, are_float8
from posenc_runtime.vllm_adapter.contract.errors import Unsupported, changed_keys
from posenc_runtime.vllm_adapter.contract.names import SCHEDULER
from posenc_runtime.vllm_adapter.contract.scheduler_choice import needs_ours
from posenc_runtime.vllm_adapter.refusals.rotating_attention import is_fused
from posenc_runtime.vllm_adapter.refusals.turning_backends import is_on_cuda

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from posenc_runtime.kv.deployment import Deployment

_TURNED_DTYPES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3")
_TURNED_ON_A_CPU = "fp8_e5m2"
_TURNED_ON_A_GPU = tuple(OWN_SCALES)
_FLOAT8_CAPABILITY = (8, 9)  # of the first NVIDIA GPUs with e4m3, which Triton needs there
# Why keys of the others are not turned. A name that nobody examined is refused, too.
_NOT_TURNED = {
    _TURNED_ON_A_CPU: "only vLLM's attention on a CPU keeps keys in it; others keep e4m3 under this name, or none",
    "fp8_inc": "only Gaudi has it, and posenc does not run there",
    "_ds_mla": "only models whose sparse attention caches rotated keys of an indexer, too, have it",
    "int4": "several numbers are packed into a byte after a transform of the whole key",
    "turboquant": "several numbers are packed into a byte after a transform of the whole key",
    "ultraquant": "several numbers are packed into a byte, and groups of them have scales that fit their largest one",
    "nvfp4": "several numbers are packed into a byte, and groups of them have scales that fit their largest one",
    **dict.fromkeys(_TURNED_ON_A_GPU, "on a CPU, vLLM's attention keeps nothing in it"),
}


def refuse_moving_requests(vllm_config: VllmConfig, deployment: Deployment) -> None:
    """If the deployment changes the scale of requests or prefixes, check that the engine allows it.

    Raises:
        Unsupported: when something is missing; the message names the setting and what to set it to.
    """
    scheduler = vllm_config.scheduler_config
    needs = needs_ours(deployment, scheduler.policy, drafts=vllm_config.speculative_config is not None)
    if needs is None:
        return
    if scheduler.scheduler_cls != SCHEDULER:
        raise Unsupported(
            f"scheduler_cls must be {SCHEDULER} where {needs.where}, got {scheduler.scheduler_cls}: {needs.otherwise}"
        )
    if not deployment.changes_scales:
        return
    if scheduler.async_scheduling and vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise Unsupported(
            f"async_scheduling must be false where pipeline_parallel_size is above 1 and {needs.where}, got true: no "
            "test shows that every pipeline stage then has the keys of a crossing request. Set it to false, or set "
            "on_crossing to pin and prefix_reuse to exact"
        )
    if vllm_config.aux_output_config.enabled:
        raise Unsupported(
            f"enable_return_routed_experts must be false where {needs.where}, got true: a crossing loses vLLM's "
            "record of the request's experts. Set it to false, or set on_crossing to pin and prefix_reuse to exact"
        )
    for architecture in vllm_config.model_config.architectures:
        if reads_prompts_both_ways(architecture):
            raise Unsupported(
                f"on_crossing must be pin and prefix_reuse must be exact for {architecture}, got "
                f"{deployment.on_crossing} and {deployment.prefix_reuse}: each token of its prompts attends to later "
                "tokens too, so the keys of a prompt change when tokens are added to it"
            )
    if deployment.takes_prefixes and not vllm_config.cache_config.enable_prefix_caching:
        raise Unsupported(
            f"prefix_reuse must be exact where enable_prefix_caching is false, got {deployment.prefix_reuse}: there is "
            "no prefix to reuse"
        )
    if vllm_config.model_config.is_hybrid:
        refuse_reused_states(deployment)
    if deployment.rerotates:
        _refuse_rerotation(vllm_config)


def refuse_reused_states(deployment: Deployment) -> None:
    """Check what a model with recurrent layers needs.

    Raises:
        Unsupported: when a request may begin with a prefix of another scale.
    """
    if deployment.takes_prefixes:
        raise Unsupported(
            f"prefix_reuse must be exact for models with recurrent layers, got {deployment.prefix_reuse}: cached keys "
            "can be turned to another scale, but nothing turns the state of a recurrent layer"
        )


def _refuse_rerotation(vllm_config: VllmConfig) -> None:
    choice = choice_of(vllm_config)
    if choice is not None and choice.takes_ours:
        raise Unsupported(
            f"attention.backend must be auto or stock where keys are re-rotated, got {choice.backend}: posenc's "
            "attention kernels may store keys in another order than vLLM does. Set on_crossing to recompute or pin, "
            "and prefix_reuse to exact"
        )
    _refuse_cached_type(vllm_config)
    model = vllm_config.model_config
    for architecture in model.architectures:
        for name in (architecture, *language_models(architecture, model.hf_text_config)):
            if change_after_rotation(name):
                raise Unsupported(changed_keys(name))


def _refuse_cached_type(vllm_config: VllmConfig) -> None:
    from vllm.platforms import current_platform

    asked = vllm_config.cache_config.cache_dtype
    elsewhere = _TURNED_ON_A_GPU if is_on_cuda() else (_TURNED_ON_A_CPU,)
    turned = (*_TURNED_DTYPES, *elsewhere)
    if asked not in turned:
        reason = next(
            (why for name, why in _NOT_TURNED.items() if name in asked), "nobody has examined how it keeps keys"
        )
        raise Unsupported(
            f"kv_cache_dtype must be one of {', '.join(turned)} where keys are re-rotated, got {asked}: {reason}. "
            "Choose one of these, or set on_crossing to recompute or pin, and prefix_reuse to exact"
        )
    if not (are_float8(vllm_config) or asked.startswith("fp8")):
        return
    capability = current_platform.get_device_capability() if current_platform.is_cuda() else None
    if capability is not None and (capability.major, capability.minor) < _FLOAT8_CAPABILITY:
        raise Unsupported(
            "kv_cache_dtype must have no float8 where keys are re-rotated on a GPU whose compute "
            f"capability is below {'.'.join(map(str, _FLOAT8_CAPABILITY))}, got {asked} and "
            f"{capability.major}.{capability.minor}: it has no float8. Or set on_crossing to recompute or pin, and "
            "prefix_reuse to exact"
        )
    choice = choice_of(vllm_config)
    if is_fused(vllm_config) and choice is not None and choice.fused_keys == "stock":
        raise Unsupported(
            "attention.fused_keys must be pure where float8 keys are re-rotated, got stock: with the attention factor "
            "on keys, each crossing rounds all of a key. Set it to pure, or set on_crossing to recompute or pin, and "
            "prefix_reuse to exact"
        )
