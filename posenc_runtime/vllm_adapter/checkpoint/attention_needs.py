"""Which attention a checkpoint needs, read from its configuration before layers are built."""

from __future__ import annotations

from typing import Any

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.decoder.distance_bias import DistanceBiasEncoding
from posenc_runtime.decoder.encoding import PositionEncoding
from posenc_runtime.decoder.positions import encoding
from posenc_runtime.decoder.positions.cope import CopeEncoding
from posenc_runtime.vllm_adapter.contract.attention_choice import Kind


def needed_by(kind: type[PositionEncoding]) -> Kind:
    """The backend that one of our encodings needs."""
    if issubclass(kind, DistanceBiasEncoding):
        return "bias"
    if issubclass(kind, CopeEncoding):
        return "cope"
    return "plain" if kind.attends() else "stock"


def needed_for(hf_text_config: Any) -> Kind:
    """The backend that most layers of a checkpoint need."""
    if isinstance(hf_text_config, PosencConfig):
        return needed_by(encoding(hf_text_config.position_encoding_type))
    return "bias" if has_alibi(hf_text_config) else "stock"


def has_alibi(hf_text_config: Any) -> bool:
    """Whether a model of vLLM, not of ours, has ALiBi.

    Each model says so in its own way: BLOOM always has ALiBi, Falcon and Baichuan have the key ``alibi``, MPT has it in
    ``attn_config``, and Jais has ``position_embedding_type``.
    """
    attn_config = getattr(hf_text_config, "attn_config", None)
    return (
        getattr(hf_text_config, "model_type", None) == "bloom"
        or getattr(hf_text_config, "alibi", False) is True
        or getattr(hf_text_config, "position_embedding_type", None) == "alibi"
        or (attn_config.get("alibi") if isinstance(attn_config, dict) else getattr(attn_config, "alibi", False)) is True
    )
