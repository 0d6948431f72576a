"""Which drafters are served beside a deployment. The model checks each drafted token with its own attention.

A drafter that is a model has keys of its own. Where requests have scales, its keys lie in the request's blocks, carry
the same scales, and are turned in the same crossings, so it has to rotate as the model does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from posenc_runtime.vllm_adapter.checkpoint.model_code.rope_parameters import (
    own_rope_parameters,
    scaled_rope_parameters,
)
from posenc_runtime.vllm_adapter.contract.errors import Unsupported

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Others read the model's cache, or tables of rotations, in ways that no test has shown to be right here.
_SHOWN = ("ngram", "draft_model", "eagle", "eagle3", "mtp")
_READS_BY_POSITION = "it reads the table of rotations by position, and a scaled table has rows for each scale"
_REASONS = {"suffix": "its package arctic-inference is not among those that Posenc is tested with"}
_REASONS_OF_SCALES = {"dflash": _READS_BY_POSITION, "dspark": _READS_BY_POSITION}
_UNSHOWN = "no test shows that answers with this drafter are right"


def refuse_method(method: Any, *, turns_queries: bool) -> None:
    """Check the method of an engine's ``speculative_config``.

    Args:
        turns_queries: whether queries turn, so that no table of rotations has scales.

    Raises:
        Unsupported: when no test shows answers with such a drafter; the message names it and those that are served.
    """
    if method not in _SHOWN:
        reasons = _REASONS if turns_queries else _REASONS | _REASONS_OF_SCALES
        raise Unsupported(
            f"speculative_config.method must be one of {', '.join(_SHOWN)}, got {method}: "
            f"{reasons.get(method, _UNSHOWN)}. Choose one of them, or leave speculative_config out"
        )


def refuse_turning_drafter(vllm_config: VllmConfig, rope_type: str) -> None:
    """Check the drafter of an engine whose queries turn. It may rotate unlike the model: its keys have no scales.

    Raises:
        Unsupported: when no test shows the drafter or what it is beside; the message names the setting and the reason.
    """
    drafting = vllm_config.speculative_config
    if drafting is None:
        return
    refuse_method(drafting.method, turns_queries=True)
    _refuse_unshown(_unshown(vllm_config), f"where scaling.rope_type is {rope_type}")


def refuse_scaled_drafter(vllm_config: VllmConfig) -> None:
    """Check the drafter of an engine whose requests have scales, once vLLM has completed ``speculative_config``.

    Raises:
        Unsupported: when no test shows the drafter or what it is beside, or when it rotates unlike the model; the
            message names the setting and the reason.
    """
    drafting, model = vllm_config.speculative_config, vllm_config.model_config
    if drafting is None:
        return
    refuse_method(drafting.method, turns_queries=False)
    drafter = drafting.draft_model_config
    unshown_with_scales = {
        "multi-head latent attention (MLA)": model.use_mla,
        "a model whose tokens have several positions (M-RoPE)": model.uses_mrope,
    }
    _refuse_unshown(_unshown(vllm_config) | unshown_with_scales, "with scales")
    if drafter is None or drafting.method == "ngram":
        return
    if not has_rotation(drafter):
        raise Unsupported(
            f"speculative_config.model must rotate as the model does where requests have scales, but "
            f"{', '.join(drafter.architectures)} has no rotary embedding: choose another drafter, or n-grams"
        )
    own, of_drafter = scaled_rope_parameters(model.hf_text_config), scaled_rope_parameters(drafter.hf_text_config)
    for name in sorted({*own, *of_drafter} - {"rope_theta"}):  # bases may differ: each model is scaled from its own
        if own.get(name) != of_drafter.get(name):
            raise Unsupported(
                "speculative_config.model must rotate as the model does where requests have scales, but its "
                f"rope_parameters have {name} {of_drafter.get(name)}, and the model's {own.get(name)}: choose another "
                "drafter, or n-grams"
            )


def _unshown(vllm_config: VllmConfig) -> dict[str, bool]:
    """Whether an engine is asked for drafts that no test has shown with any method, by the words of a refusal."""
    drafting = vllm_config.speculative_config
    return {
        "Gemma 4's layers that draft, which read the model's keys": drafting.use_gemma4_mtp(),
        "several layers that draft one token each": drafting.use_multi_module_mtp(),
        "parallel_drafting": drafting.parallel_drafting,
        "num_speculative_tokens_per_batch_size": bool(drafting.num_speculative_tokens_per_batch_size),
        "a model with recurrent layers": vllm_config.model_config.is_hybrid,
        "pipeline_parallel_size above 1": vllm_config.parallel_config.pipeline_parallel_size > 1,
    }


def _refuse_unshown(asked: Mapping[str, bool], where: str) -> None:
    for what, is_asked in asked.items():
        if is_asked:
            raise Unsupported(
                f"speculative_config is not served {where} and {what}, because no test shows that such answers are "
                "right: leave speculative_config out"
            )


def has_rotation(drafter: Any) -> bool:
    """Whether a drafter rotates, by its vLLM ``ModelConfig``. Our readers of sources do not know drafters' modules."""
    return own_rope_parameters(drafter.hf_text_config) is not None


def is_drafter(model_config: Any) -> bool:
    """Whether this is vLLM's configuration of a drafter's model, and not of the model that uses the drafter."""
    return getattr(model_config, "runner_type", None) == "draft"
