"""``rope_type: auto``: the method and the scales that a checkpoint's own configuration asks for."""

from __future__ import annotations

import dataclasses

from posenc_runtime.encodings.scaling import available
from posenc_runtime.vllm_adapter.checkpoints.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.settings.section import ScalingSettings, SettingRefused

# Peng et al. 2023, arXiv:2309.00071, section 4: of the methods that need no tuning, this one loses the least quality.
_FOR_UNSCALED = "yarn"
# The factors that model cards give for YaRN, and that YaRN's authors measured without tuning.
_SCALES = [1.0, 2.0, 4.0]
# vLLM's max_model_len for the longest request that the cache has room for; auto sets it where no length is given.
FIT_INTO_MEMORY = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived:
    """What ``auto`` stands for with one checkpoint, and why."""

    scaling: ScalingSettings
    reason: str


def derived(scaling: ScalingSettings, checkpoint: Checkpoint | None, model: str) -> Derived:
    """Choose the method, and the scales where the settings give none.

    Args:
        scaling: with rope_type ``auto``.
        checkpoint: None where it cannot be read.
        model: its name, for refusals.

    Raises:
        SettingRefused: when there is no checkpoint to derive anything from.
    """
    if checkpoint is None or checkpoint.spec is None:
        raise SettingRefused(
            f"scaling.rope_type: must name a method where the configuration of model {model!r} is not read, got auto: "
            f"choose one of {', '.join(available())}"
        )
    rope_type, reason = _FOR_UNSCALED, "the checkpoint's own rotation is not scaled"
    if checkpoint.rope_type != "default":
        rope_type, reason = checkpoint.rope_type, f"the checkpoint's own rope_type is {checkpoint.rope_type}"
    scales, asked = _SCALES, scaling.model_fields_set
    trained = scaling.original_max_position_embeddings or checkpoint.max_position_embeddings
    if checkpoint.tuned_length is not None and trained is not None:
        scales = [1.0, checkpoint.tuned_length / trained] if checkpoint.tuned_length > trained else [1.0]
        reason += f", tuned for {checkpoint.tuned_length} tokens"
    update = {"rope_type": rope_type} | ({} if "scales" in asked else {"scales": scales})
    return Derived(scaling=scaling.model_copy(update=update), reason=reason)
