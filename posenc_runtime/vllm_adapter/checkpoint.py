"""What a checkpoint's own configuration says about its positions, read before an engine is started."""

from __future__ import annotations

import dataclasses
import pathlib
import textwrap
from collections.abc import Mapping
from typing import Any

from posenc_runtime.encodings.scaling import own
from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.vllm_adapter import models
from posenc_runtime.vllm_adapter.attention.choice import Kind
from posenc_runtime.vllm_adapter.attention.needs import needed_for
from posenc_runtime.vllm_adapter.support import Unsupported, refuse_checkpoint, rotates
from posenc_runtime.zoo.model.config import PosencConfig


class UnreadableCheckpoint(ValueError):
    """The checkpoint's configuration could not be read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The part of a checkpoint's configuration that a deployment depends on.

    Attributes:
        max_position_embeddings: trained length as the checkpoint states it, tokens; None where it does not.
        spec: the rotary embedding it was trained with; None where it has none.
        rope_type: its own method.
        parameters: that method's, as far as the checkpoint says them.
        architecture: what vLLM calls its model.
        attention: the backend that most of its layers need.
        furthest: the longest request that it has positions for; None where that is not known before it is loaded.
    """

    max_position_embeddings: int | None
    spec: RotarySpec | None
    rope_type: str = "default"
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    architecture: str = ""
    attention: Kind = "stock"
    furthest: int | None = None


def read_checkpoint(model: str, engine: Mapping[str, Any]) -> Checkpoint:
    """Read and check a checkpoint's configuration.

    Args:
        engine: vLLM engine arguments; those that say where the configuration comes from are used.

    Raises:
        UnreadableCheckpoint: when there is none to read, a hub that cannot be reached for example.
        Unsupported: when it cannot be served or scaled; the message names the architecture, the rope type or the key.
    """
    from vllm.transformers_utils.config import get_config, get_hf_text_config

    source = engine.get("hf_config_path") or model
    models.register()
    try:
        config = get_config(
            _at_hand(source, engine),
            trust_remote_code=bool(engine.get("trust_remote_code", False)),
            revision=engine.get("revision"),
            code_revision=engine.get("code_revision"),
        )
    except Exception as error:
        # Whatever a hub client or a checkpoint's own code raises means the same here. The first line of a hub is "401
        # Client Error", and those below say what is missing.
        reason = textwrap.shorten(str(error), 400, placeholder=" ...") or type(error).__name__
        raise UnreadableCheckpoint(f"the configuration of {source!r} cannot be read: {reason}") from error
    models.refuse_variant(config)
    text_config = get_hf_text_config(config)
    architectures = getattr(config, "architectures", None) or []
    if not rotates(text_config):
        needs, trained = needed_for(text_config), _trained_length(text_config)
        # Neither rotated nor biased: learned, as far as vLLM's own models go. Ours say themselves what they have.
        is_learned = needs == "stock" and not isinstance(text_config, PosencConfig)
        return Checkpoint(
            max_position_embeddings=trained,
            spec=None,
            architecture=", ".join(architectures),
            attention=needs,
            furthest=trained if is_learned else None,
        )
    refuse_checkpoint(text_config, architectures)
    rope_parameters = text_config.rope_parameters
    head_dim = getattr(text_config, "head_dim", None) or text_config.hidden_size // text_config.num_attention_heads
    rotary_dim = int(head_dim * rope_parameters.get("partial_rotary_factor", 1.0))
    longest = text_config.max_position_embeddings
    rope_type, rope_theta = rope_parameters["rope_type"], rope_parameters["rope_theta"]
    if not isinstance(rope_theta, int | float):
        raise Unsupported(f"rope_theta must be one number for all layers, got {rope_theta}")
    trained, parameters = own(rope_type).of_checkpoint(rope_parameters, longest)
    return Checkpoint(
        max_position_embeddings=trained,
        spec=RotarySpec(
            rotary_dim=rotary_dim,
            rope_theta=float(rope_theta),
            original_max_position_embeddings=trained,
        ),
        rope_type=rope_type,
        parameters=parameters,
        architecture=", ".join(architectures),
    )


def _trained_length(text_config: Any) -> int | None:
    """Under whichever name the architecture has for it."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    return min((length for name in names if (length := getattr(text_config, name, None))), default=None)


def _at_hand(source: str, engine: Mapping[str, Any]) -> str:
    """The folder of a checkpoint's configuration, fetched if need be.

    Asking for the one file gives up after half a minute where a hub cannot be reached; vLLM's own way of asking retries
    for minutes.
    """
    if pathlib.Path(source).is_dir() or engine.get("trust_remote_code"):
        return source
    from huggingface_hub import hf_hub_download

    return str(pathlib.Path(hf_hub_download(source, "config.json", revision=engine.get("revision"))).parent)
