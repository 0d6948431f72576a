"""What a checkpoint's own configuration says about its positions, read before an engine is started."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedConfig

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.decoder.positions import encoding
from posenc_runtime.encodings.read_time.dual_chunk import DualChunk
from posenc_runtime.encodings.scaling import from_parameters, own
from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.vllm_adapter.checkpoint import overrides, own_models
from posenc_runtime.vllm_adapter.checkpoint.attention_needs import needed_for
from posenc_runtime.vllm_adapter.checkpoint.config_file import look
from posenc_runtime.vllm_adapter.checkpoint.hub import UnreadableCheckpoint, is_in_object_store, reason_of
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_rules import caches_latents, other_bases
from posenc_runtime.vllm_adapter.checkpoint.model_code.rope_parameters import (
    PROPORTIONAL,
    has_several,
    head_dim,
    scaled_rope_parameters,
)
from posenc_runtime.vllm_adapter.checkpoint.model_code.rotated_distances import tokens_seen_where_rotated
from posenc_runtime.vllm_adapter.checkpoint.model_code.verdicts import Verdict, verdict
from posenc_runtime.vllm_adapter.checkpoint.scalable_checkpoints import (
    reason_for_scale_1_alone,
    refuse_checkpoint,
    rotates,
)
from posenc_runtime.vllm_adapter.checkpoint.stated_positions import (
    AddedYarn,
    added_yarn,
    refuse_stated,
    stated_length,
    with_whole_lengths,
)
from posenc_runtime.vllm_adapter.contract.attention_choice import Kind
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import ARCHITECTURES
from posenc_runtime.vllm_adapter.releases import reader

if TYPE_CHECKING:
    from vllm.config import ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The part of a checkpoint's configuration that a deployment depends on.

    Attributes:
        max_position_embeddings: trained length as the checkpoint states it, tokens; None where it does not.
        spec: the rotary embedding it was trained with; None where it has none.
        rope_type: its own rotary method.
        parameters: parameters of that method that the checkpoint states.
        architecture: what vLLM calls its model.
        attention: the backend that most of its layers need.
        furthest: longest request that it has positions for, tokens; None where that is known only when it is loaded.
        sliding_window: tokens that a query sees in some of its layers, its own included; None where all layers see all.
        added_yarn: YaRN that was added to its configuration by hand; None where it has none.
        has_other_rotations: whether it has rotary embeddings that are not scaled: of layers with a window, of a vision
            tower.
        tuned_length: longest request that its own method has a rotation for, tokens; None where there is no such bound.
        text_part: names that lead from its configuration to that of its text; none where it is all of text.
        scale_1_alone: why its rotary embeddings stay vLLM's own, which rotate at scale 1; None where they need not.
        dual_chunk: parameters of ``rope_type: dual_chunk`` that its ``dual_chunk_attention_config`` states; None where
            it has none. ``max_position_embeddings`` is then the length that needs no chunks.
        chunked_length: longest request that it is meant for with these chunks, tokens.
        text_config: the configuration of its text, of which the verdict and the size of its cache are made.
    """

    max_position_embeddings: int | None
    spec: RotarySpec | None
    rope_type: str = "default"
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    architecture: str = ""
    attention: Kind = "stock"
    furthest: int | None = None
    sliding_window: int | None = None
    tuned_length: int | None = None
    added_yarn: AddedYarn | None = None
    has_other_rotations: bool = False
    text_part: tuple[str, ...] = ()
    scale_1_alone: str | None = None
    dual_chunk: Mapping[str, Any] | None = None
    chunked_length: int | None = None
    text_config: Any = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def longest_kept(self) -> int | None:
        """The longest request that its own rotation serves, tokens; None where it does not state its trained length.

        LongRoPE was tuned for a longer one than its first: its long factors serve it.
        """
        return self.tuned_length or self.max_position_embeddings

    @property
    def verdict(self) -> Verdict | None:
        """How its requests may cross, as far as the sources of its model tell; None where it has no rotation.

        Only the command line asks, so an engine's start does not read the sources once more.
        """
        if self.spec is None or not self.architecture:
            return None
        return verdict(self.architecture.partition(", ")[0], self.text_config)

    @functools.cached_property
    def window_where_rotated(self) -> int | None:
        """The most tokens that a query sees in a layer that rotates, its own included.

        None where such a layer sees the whole request, or where the source of the model does not tell.
        """
        if self.spec is None or self.text_config is None:
            return None
        return tokens_seen_where_rotated(self.architecture.partition(", ")[0], self.text_config)

    def needs_no_scale(self, trained: int) -> bool:
        """Whether no rotated distance exceeds a trained length, however long a request is. Decision 70.

        A checkpoint that was tuned for longer requests with another rotation (LongRoPE) needs its second scale.

        Args:
            trained: tokens.
        """
        if self.tuned_length is not None or self.window_where_rotated is None:
            return False
        return self.window_where_rotated <= trained


def read_checkpoint(model: str, engine: Mapping[str, Any], place: str | None = None) -> Checkpoint:
    """Read and check a checkpoint's configuration.

    Args:
        engine: vLLM engine arguments; those that say where the configuration comes from are used.
        place: where the configuration is, from ``first_look.look``; looked for when left out.

    Raises:
        UnreadableCheckpoint: when it cannot be read, for example because a hub cannot be reached.
        Unsupported: when it cannot be served or scaled; the message names the architecture, the rope type or the key.
    """
    source = engine.get("hf_config_path") or model
    place = look(model, engine).place if place is None else place
    if is_in_object_store(place):
        raise UnreadableCheckpoint(source, "posenc cannot read an object store; vLLM reads it with the weights")
    given = engine.get("hf_overrides")
    changed = overrides.without_rotations(given) if isinstance(given, Mapping) else {}
    try:
        config = _read(
            place,
            trust_remote_code=bool(engine.get("trust_remote_code", False)),
            revision=engine.get("revision"),
            code_revision=engine.get("code_revision"),
            config_format=engine.get("config_format") or "auto",
            token=engine.get("hf_token"),
            hf_overrides_kw=overrides.flat(changed),
        )
    except Exception as error:
        # A hub's client and a checkpoint's own code may raise anything: the configuration cannot be read.
        refuse_stated(place, engine)
        raise UnreadableCheckpoint(source, reason_of(error)) from error
    overrides.apply(config, changed)
    try:
        return _said_by(config)
    except Unsupported:
        refuse_stated(place, engine)
        raise


def _read(place: str, **arguments: Any) -> Any:
    """A checkpoint's configuration, as all of vLLM reads it."""
    if reader.reads_alone():
        own_models.register_configurations()
        with contextlib.suppress(reader.NotRead):
            config = reader.read_alone(place, **arguments)
            known = reader.registered_models().keys() | ARCHITECTURES.keys()
            if known.issuperset(getattr(config, "architectures", None) or [None]):
                return config
    from vllm.transformers_utils.config import get_config

    own_models.register()
    return get_config(place, **arguments)


def read_again(model_config: ModelConfig) -> Checkpoint:
    """Read the configuration of an engine's checkpoint once more, for its trained length.

    vLLM's configuration of the engine has the served length in the place of the trained length.

    Raises:
        Unsupported: as ``read_checkpoint``.
    """
    from vllm.transformers_utils.config import get_config

    changed = model_config.hf_overrides
    is_function = callable(changed)
    config = get_config(
        model_config.hf_config_path or model_config.model,
        model_config.trust_remote_code,
        model_config._hf_config_revision or model_config.revision,
        model_config.code_revision,
        model_config.config_format,
        hf_overrides_kw={} if is_function else overrides.flat(changed),
        hf_overrides_fn=changed if is_function else None,
        token=model_config.hf_token,
    )
    if not is_function:
        overrides.apply(config, changed)
    return _said_by(config)


def refuse_another(checkpoint: Checkpoint, rope_type: str, parameters: Mapping[str, Any], trained: int) -> None:
    """Check that a deployment rotates at scale 1 as the checkpoint does: parameters may change only larger scales.

    Args:
        trained: the deployment's trained length, which may be shorter than the checkpoint's.

    Raises:
        ValueError: when scale 1 is not the checkpoint's own rotation, or reaches further than it was trained.
    """
    longest, spec = checkpoint.max_position_embeddings, checkpoint.spec
    if longest is not None and trained > longest:
        raise ValueError(
            f"original_max_position_embeddings: must not exceed the checkpoint's trained length {longest}, got "
            f"{trained}"
        )
    if spec is None:
        return
    own = from_parameters(checkpoint.rope_type, checkpoint.parameters).frequencies(spec, 1.0)
    shorter = dataclasses.replace(spec, original_max_position_embeddings=trained)
    unscaled = from_parameters(rope_type, parameters).frequencies(shorter, 1.0)
    if (
        not torch.allclose(unscaled.inv_freq, own.inv_freq, rtol=1e-9, atol=0)
        or unscaled.attention_factor != own.attention_factor
    ):
        raise ValueError(
            "rope_type: scale 1 must rotate exactly as the checkpoint does, got parameters that change the rotation "
            f"(attention factor {unscaled.attention_factor!r}, in the checkpoint {own.attention_factor!r}): take the "
            "parameters from the checkpoint's configuration, or leave them out"
        )


def _said_by(config: Any) -> Checkpoint:
    own_models.refuse_variant(config)
    try:
        text_config = reader.text_config_of(config)
    except ValueError as error:
        raise Unsupported(f"its configuration has no configuration of a text model: {error}") from None
    architectures = getattr(config, "architectures", None) or []
    if not rotates(text_config, architectures):
        needs, trained = needed_for(text_config), stated_length(text_config)
        return Checkpoint(
            max_position_embeddings=trained,
            spec=None,
            architecture=", ".join(architectures),
            attention=needs,
            furthest=_furthest(text_config, needs, trained),
            text_config=text_config,
        )
    dual_chunk = _take_chunks(text_config)
    scale_1_alone = None
    if text_config is config:  # which tables kernels of images or sound read is not looked at
        scale_1_alone = reason_for_scale_1_alone(text_config, architectures, stated_length(text_config))
    refuse_checkpoint(text_config, architectures, is_scaled=scale_1_alone is None)
    try:
        found = _rotating(text_config, architectures, has_other_parts=text_config is not config)
        if dual_chunk is not None:
            found = _chunked(found, dual_chunk)
        return dataclasses.replace(
            found,
            text_part=_text_part(config, text_config),
            scale_1_alone=scale_1_alone,
            text_config=text_config,
        )
    except (ValueError, TypeError, ArithmeticError, KeyError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise Unsupported(
            f"the configuration of {', '.join(architectures)} does not describe a rotary embedding: {reason}"
        ) from None


def _take_chunks(text_config: Any) -> DualChunk | None:
    """Take dual chunk attention out of a configuration, because vLLM no longer has it and we serve it otherwise.

    Raises:
        Unsupported: when its numbers describe no chunks.
    """
    stated = getattr(text_config, "dual_chunk_attention_config", None)
    if stated is None:
        return None
    text_config.dual_chunk_attention_config = None
    try:
        return DualChunk.of_checkpoint(stated)
    except (ValueError, TypeError, AttributeError) as error:
        raise Unsupported(f"its dual_chunk_attention_config describes no chunks: {error}") from None


def _chunked(found: Checkpoint, method: DualChunk) -> Checkpoint:
    """Within ``chunk_size`` tokens every query sees every key where it is: that is the length without chunks."""
    assert found.spec is not None and method.chunk_size is not None
    trained = min(method.chunk_size, found.max_position_embeddings or method.chunk_size)
    return dataclasses.replace(
        found,
        max_position_embeddings=trained,
        spec=dataclasses.replace(found.spec, original_max_position_embeddings=trained),
        dual_chunk={name: value for name, value in dataclasses.asdict(method).items() if name != "temperature"},
        chunked_length=found.max_position_embeddings,
    )


def _furthest(text_config: Any, needs: Kind, trained: int | None) -> int | None:
    """The longest request that a model without rotary embeddings has positions for, tokens. Decision 56."""
    if isinstance(text_config, PosencConfig):  # our own say what they have
        dtype = getattr(text_config, "dtype", None) or torch.float32
        return encoding(text_config.position_encoding_type).longest(text_config, dtype)
    # A model of vLLM's with neither rotation nor distance bias has learned positions.
    return trained if needs == "stock" else None


def _rotating(text_config: Any, architectures: list[str], *, has_other_parts: bool) -> Checkpoint:
    rope_parameters = scaled_rope_parameters(text_config)
    longest = stated_length(text_config)
    if longest is None:
        raise ValueError("max_position_embeddings is missing")
    rope_theta = rope_parameters["rope_theta"]
    if not isinstance(rope_theta, int | float):
        raise ValueError(f"rope_theta must be a number, got {rope_theta!r}")
    rope_type = rope_parameters["rope_type"]
    rotary_dim, num_rotated_pairs = _width(text_config, rope_parameters), None
    if rope_type == PROPORTIONAL:
        rope_type, num_rotated_pairs = "default", rotary_dim // 2
        rotary_dim = head_dim(text_config)
    if rope_type == "yarn" and any(caches_latents(text_config, architecture) for architecture in architectures):
        rope_parameters["rope_type"] = "deepseek_yarn"  # vLLM's name for how these models read the other keys
    trained, parameters, tuned_length = own(rope_type).of_checkpoint(with_whole_lengths(rope_parameters), longest)
    spec = RotarySpec(
        rotary_dim=rotary_dim,
        rope_theta=float(rope_theta),
        original_max_position_embeddings=trained,
        num_rotated_pairs=num_rotated_pairs,
    )
    from_parameters(own(rope_type).rope_type, parameters).frequencies(spec, 1.0)
    others = any(other_bases(text_config, architecture) for architecture in architectures)
    return Checkpoint(
        max_position_embeddings=trained,
        spec=spec,
        rope_type=rope_type,
        parameters=parameters,
        architecture=", ".join(architectures),
        sliding_window=getattr(text_config, "sliding_window", None) or None,
        tuned_length=tuned_length,
        added_yarn=added_yarn(rope_parameters | {"rope_type": rope_type}, longest),
        has_other_rotations=has_other_parts or has_several(text_config) or others,
    )


def _width(text_config: Any, rope_parameters: Mapping[str, Any]) -> int:
    """Width of the rotated part of a head."""
    if of_latents := getattr(text_config, "qk_rope_head_dim", None):
        return int(of_latents)
    partial = rope_parameters.get("partial_rotary_factor", 1.0)
    if not 0 < partial <= 1:
        raise ValueError(f"partial_rotary_factor must be above 0 and at most 1, got {partial}")
    return int(rope_parameters.get("rope_dim") or head_dim(text_config) * partial)


def _text_part(config: Any, text_config: Any) -> tuple[str, ...]:
    for name, part in vars(config).items():
        if part is text_config:
            return (name,)
        if isinstance(part, PreTrainedConfig) and (further := _text_part(part, text_config)):
            return (name, *further)
    return ()
