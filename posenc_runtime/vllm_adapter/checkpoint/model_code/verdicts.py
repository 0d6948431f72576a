"""How requests of an architecture may cross to another scale, as far as its sources tell.

A worker asks the model that it has built (Decision 66), and has the last word. This is for what is said before that:
the table of architectures in the documentation, and ``posenc check``.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import Any, Literal

from posenc_runtime.vllm_adapter.checkpoint.model_code.decoders import (
    attends_to_an_encoder,
    condition_on_configuration,
    derives_from,
    may_rotate,
    reads_configuration,
    rope_type_of_axes,
    rotated_states,
    rotating_layers,
)
from posenc_runtime.vllm_adapter.checkpoint.model_code.definitions import definitions_in_transformers
from posenc_runtime.vllm_adapter.checkpoint.model_code.language_models import (
    language_models,
    leaves_it_to_the_checkpoint,
)
from posenc_runtime.vllm_adapter.checkpoint.model_code.later_changes import change_after_rotation
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_rules import Refusal, has_axes, refusal_of
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import (
    fixed_rope_type,
    has_own_model,
    key_of_reading,
    reads_prompts_both_ways,
)

Kind = Literal["rerotate", "recompute, pin", "pin", "without scaling", "at load", "refused"]
# From the best to the worst, for a model that may run one of several language models.
KINDS: tuple[Kind, ...] = ("rerotate", "recompute, pin", "pin", "without scaling", "at load", "refused")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What requests of an architecture may do.

    Attributes:
        kind: how requests may cross; ``without scaling`` where a model is served but has nothing to scale; ``at load``
            where only the worker can tell.
        reason: why, or what it depends on: clauses. Empty where there is nothing to say.
        advice: what to do where it is refused: a sentence.
    """

    kind: Kind
    reason: str = ""
    advice: str = ""

    @property
    def scales(self) -> bool:
        """Whether each request has a scale."""
        return self.kind in ("rerotate", "recompute, pin", "pin")


def verdict(architecture: str, hf_text_config: Any = None, *, usual: str | None = None) -> Verdict:
    """What requests of an architecture may do.

    Args:
        hf_text_config: of the checkpoint; without it, the reason says what its keys would change.
        usual: the language model that checkpoints of a multimodal architecture usually have.
    """
    if refusal := refusal_of(architecture, hf_text_config):
        return Verdict("refused", refusal.why, refusal.advice)
    if not has_own_model(architecture):
        return _in_transformers(architecture, usual)
    if reads_configuration(architecture, "diffusion_config"):
        return _refused(Refusal(architecture, "it writes blocks of text by diffusion, not token by token"))
    if leaves_it_to_the_checkpoint(architecture):
        found = language_models(architecture, hf_text_config) or ((usual,) if usual else ())
        said = _of_language_models(found, hf_text_config, "usually" if hf_text_config is None else "")
    elif not rotating_layers(architecture) and (found := language_models(architecture)):
        said = _of_language_models(found, hf_text_config, "")
    elif attends_to_an_encoder(architecture):
        return _refused(Refusal(architecture, "it is an encoder-decoder model"))
    else:
        said = _of_layers(architecture, hf_text_config)
    has_images = all(derives_from(architecture, each) for each in ("SupportsMultiModal", "SupportsMRoPE"))
    if said.scales and has_images and (hf_text_config is None or has_axes(hf_text_config)):
        return _with_axes(said, (architecture, *language_models(architecture, hf_text_config)))
    return said


def _with_axes(said: Verdict, architectures: tuple[str, ...]) -> Verdict:
    """What a multimodal model may do whose tokens have positions on several axes (M-RoPE)."""
    if rope_type := next(filter(None, map(rope_type_of_axes, architectures)), None):
        return _refused(Refusal("", f"its M-RoPE is vLLM's `{rope_type}`, which posenc does not scale"))
    note = "with M-RoPE, requests with images, video or audio cross by `recompute`"
    return dataclasses.replace(said, reason="; ".join(filter(None, (said.reason, note))))


def _refused(refusal: Refusal) -> Verdict:
    return Verdict("refused", refusal.why, refusal.advice)


def _of_language_models(architectures: tuple[str, ...], hf_text_config: Any, how: str) -> Verdict:
    """What the worst of some language models may do."""
    if not architectures:
        return Verdict("at load", "as its language model, which the checkpoint names")
    said = {each: verdict(each, hf_text_config) for each in architectures}
    worst = max(said, key=lambda each: KINDS.index(said[each].kind))
    name = " ".join(filter(None, ("as its language model,", how, worst)))
    return dataclasses.replace(said[worst], reason=": ".join(filter(None, (name, said[worst].reason))))


def _of_layers(architecture: str, hf_text_config: Any) -> Verdict:
    if not may_rotate(architecture):
        return Verdict("without scaling", "its keys are not rotated")
    if reads_prompts_both_ways(architecture):
        return Verdict("pin", "each token of its prompts attends to later tokens, so keys of a prompt change with it")
    if change := change_after_rotation(architecture):
        return Verdict("recompute, pin", f"its layers change keys after their rotation: `{change}`")
    if layer := rotated_states(architecture):
        return Verdict("recompute, pin", f"{layer} also rotates what enters its recurrent state")
    conditions = []
    if hf_text_config is None:
        if condition := condition_on_configuration(architecture):
            conditions.append(f"without scaling unless `{condition}`")
        if key := key_of_reading(architecture):
            conditions.append(f"refused with `{key}`, whose sparse indexer reads the table of rotations itself")
        if rope_type := rope_type_of_axes(architecture):
            conditions.append(f"refused with `mrope_section`, for which it has vLLM's `{rope_type}`")
        if rope_type := fixed_rope_type(architecture):
            conditions.append(f"refused with another `rope_type` than `{rope_type}`, by which its code rotates")
    return Verdict("rerotate", "; ".join(conditions))


def _in_transformers(architecture: str, usual: str | None) -> Verdict:
    found = definitions_in_transformers(usual or architecture)
    if not found:
        return Verdict("at load", "its code comes with the checkpoint, or with a later transformers")
    of_language_model = f"as its language model, usually {usual}" if usual else ""
    sources = [ast.unparse(each.node) for each in found if isinstance(each.node, ast.ClassDef)]
    if not any("inv_freq" in source and "attention_scaling" in source for source in sources):
        return Verdict("without scaling", of_language_model or "its keys are not rotated")
    if change := change_after_rotation(architecture):
        return Verdict("recompute, pin", f"its layers change keys after their rotation: `{change}`")
    return Verdict("rerotate", of_language_model)
