"""``auto``: the method and the scales that a checkpoint's own configuration and the served length ask for."""

from __future__ import annotations

import dataclasses
from typing import Any

from posenc_runtime.encodings.methods import available
from posenc_runtime.encodings.read_time.dual_chunk import DualChunk
from posenc_runtime.kv.scales import reach
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.settings.section import AUTO, ScalingSettings, SettingRefused

# Peng et al. 2023, arXiv:2309.00071, section 4: of the methods that need no tuning, this one loses the least quality.
_FOR_UNSCALED = "yarn"
_NOT_MEASURED = "because it was measured with two small models"
# The factors that model cards give for YaRN, and that YaRN's authors measured without tuning.
_SCALES = [1.0, 2.0, 4.0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived:
    """What ``auto`` stands for with one checkpoint, and why."""

    scaling: ScalingSettings
    reason: str


def derive(
    scaling: ScalingSettings, checkpoint: Checkpoint | None, model: str, max_model_len: int | None = None
) -> Derived:
    """Choose what the settings leave to ``auto``: the method, the scales, or both.

    Args:
        checkpoint: None where it cannot be read.
        model: its name, for refusals.
        max_model_len: longest request, tokens; None where nobody has said it.

    Raises:
        SettingRefused: when there is no checkpoint to derive anything from.
    """
    chooses_method = scaling.rope_type == AUTO
    if checkpoint is None or checkpoint.spec is None:
        name, rule = ("rope_type", "name a method") if chooses_method else ("scales", "be numbers")
        choice = f": choose one of {', '.join(available())}" if chooses_method else ", for example [1, 2, 4]"
        raise SettingRefused(
            f"scaling.{name}: must {rule} where the configuration of model {model!r} is not read, got {AUTO}{choice}"
        )
    if chooses_method and checkpoint.dual_chunk is not None:
        return _chunks(scaling)
    update: dict[str, Any] = {}
    reasons = []
    trained = scaling.original_max_position_embeddings or checkpoint.max_position_embeddings
    chooses_scales = not scaling.scales or "scales" not in scaling.model_fields_set
    if chooses_scales and trained is not None and checkpoint.needs_no_scale(trained):
        update["scales"] = [1.0]
        if chooses_method:
            update["rope_type"] = checkpoint.rope_type
        return Derived(scaling=scaling.model_copy(update=update), reason=seen_where_rotated(checkpoint))
    if chooses_method:
        own = checkpoint.rope_type
        update["rope_type"] = chosen = _FOR_UNSCALED if own == "default" else own
        taken = "" if chosen == own else f", for which it takes {chosen}, and rerope only by name, {_NOT_MEASURED}"
        reasons.append(f"the checkpoint's own rope_type is {own}{taken}")
    if chooses_scales:
        update["scales"], reason = _scales(trained, checkpoint.tuned_length, max_model_len)
        reasons += [reason] if reason else []
    return Derived(scaling=scaling.model_copy(update=update), reason=", ".join(reasons))


def _chunks(scaling: ScalingSettings) -> Derived:
    """Dual chunk attention, for which the checkpoint has numbers of its own.

    Raises:
        SettingRefused: when the settings ask for something that goes with scales.
    """
    reason = "the checkpoint has a dual_chunk_attention_config"
    try:
        scaling.refuse_scales(f"rope_type is {AUTO} and {reason}")
    except ValueError as error:
        raise SettingRefused(f"scaling.{error}") from None
    return Derived(scaling=scaling.model_copy(update={"rope_type": DualChunk.name, "scales": [1.0]}), reason=reason)


def seen_where_rotated(checkpoint: Checkpoint) -> str:
    """Why a checkpoint ``needs_no_scale``: a clause."""
    return (
        f"no layer that rotates sees more than {checkpoint.window_where_rotated} tokens, however long a request is, so "
        "no request needs a scale above 1"
    )


def _scales(trained: int | None, tuned_length: int | None, max_model_len: int | None) -> tuple[list[float], str]:
    """The scales, and why these; an empty reason for those that are usual."""
    if trained is not None and tuned_length is not None:
        scales = [1.0, tuned_length / trained] if tuned_length > trained else [1.0]
        return scales, f"tuned for {tuned_length} tokens"
    if trained is None or max_model_len is None:
        return _SCALES, ""
    scales = [1.0]
    while reach(scales[-1], trained) < max_model_len:
        scales.append(2 * scales[-1])
    return scales, f"max_model_len is {max_model_len}, and the trained length {trained}"
