"""What a family is, and the sizes that most of them share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

TRAINED = 128  # tokens
WINDOW = 32  # tokens: a block of the CPU's KV cache
ORIGINAL = 32  # tokens that a checkpoint with a scaled rotation of its own was trained on before that
OWN_FACTOR = 4.0  # of that rotation: OWN_FACTOR * ORIGINAL == TRAINED

NO_SPECIAL_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
# Heads of 32: the smallest that vLLM's attention on the CPU takes, and hidden_size / num_attention_heads.
SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": TRAINED,
    **NO_SPECIAL_TOKENS,
}
PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
LOCAL: dict[str, Any] = {"rope_type": "default", "rope_theta": 1000.0}  # another theta than the global rotation's
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": OWN_FACTOR,
    "original_max_position_embeddings": ORIGINAL,
}
# vLLM's rotary kernel for the CPU takes the distance of two heads for that of two tokens where queries or keys have a
# dimension of heads. Its PyTorch code does not.
NO_ROTARY_KERNEL: dict[str, Any] = {"compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}}
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclasses.dataclass(frozen=True)
class Picture:
    """How a prompt names a picture, and what it becomes.

    Attributes:
        around: the tokens before and after its placeholder.
        placeholder: a token.
        num_tokens: that take the placeholder's place.
        height: pixels
        width: pixels
        has_axes: whether its tokens have positions on several axes (M-RoPE).
    """

    around: tuple[list[int], list[int]]
    placeholder: int
    num_tokens: int
    height: int
    width: int
    has_axes: bool = False


@dataclasses.dataclass(frozen=True)
class Family:
    """A tiny checkpoint of a real architecture.

    Attributes:
        architecture: as its config.json names it.
        kind: what it is an example of.
        config: makes its configuration.
        dtype: of its weights, and of what vLLM computes on the CPU.
        trained: its ``max_position_embeddings``, tokens.
        window: of its layers with a sliding window or with chunks, tokens; None where it has no such layers.
        engine: what stock vLLM has to be told beside its dtype to compute what the model means.
        in_transformers: what its configuration says to transformers instead, where vLLM means something else by it.
        model: the class in transformers, where it is not of the architecture's name.
        published: makes its config.json, where that of the published ones is not what transformers saves.
        renamed: makes the weights that are saved of those of ``model``, where these are not what transformers saves.
        tokens: its tokenizer's special ones, in the order of their numbers, from 256 on.
        files: what else is in its folder, by name: text, or what is written as JSON.
        picture: one that it sees; None where it sees none, or vLLM on the CPU cannot show it one.
    """

    architecture: str
    kind: str
    config: Callable[[], PreTrainedConfig]
    dtype: str = "float32"
    trained: int = TRAINED
    window: int | None = None
    engine: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    in_transformers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model: str = ""
    published: Callable[[], dict[str, Any]] | None = None
    renamed: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    tokens: tuple[str, ...] = ()
    files: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    picture: Picture | None = None
