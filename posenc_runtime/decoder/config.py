"""Configuration of the decoder: Llama's keys, the name of a position encoding, and that encoding's own keys."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from posenc_runtime.decoder import positions
from posenc_runtime.decoder.rules import require_above, require_one_of, require_whole

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
# Sizes that may be left out: they are then computed from the others.
DERIVED = ("num_key_value_heads", "head_dim")
SWITCHES = ("use_cache", "tie_word_embeddings", "attention_bias", "mlp_bias")


class PosencConfig(PreTrainedConfig):
    """Keys mean what they mean to Llama, and ``position_encoding_type`` is the name of a file of ``positions/``.

    The chosen encoding's own keys are attributes, with the encoding's defaults for those that are not given. Keys of
    other encodings do not exist. An encoding's file documents its keys. ``max_position_embeddings`` is the trained
    length.

    Raises:
        ValueError: when a value is out of range, or a key belongs to another encoding or to none; the message names
            the key, the value and the rule.
    """

    model_type = "posenc"
    keys_to_ignore_at_inference: ClassVar = ["past_key_values"]

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    # None only while they are being derived, in __post_init__.
    num_key_value_heads: int = None  # type: ignore[assignment]
    head_dim: int = None  # type: ignore[assignment]
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    position_encoding_type: str = "rope"

    def __post_init__(self, **given: Any) -> None:
        for name in SIZES:
            if getattr(self, name) is not None or name not in DERIVED:
                require_whole(name, getattr(self, name), 1)
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        encoding = positions.encoding(self.position_encoding_type)
        self._refuse_keys(given)
        for name, default in encoding.defaults.items():
            value = given.pop(name, None)
            setattr(self, name, copy.deepcopy(default if value is None else value))
        # Keys of other encodings passed `_refuse_keys` if they are None or false. They must not become attributes.
        known = {name for name in given if positions.owners(name)}
        super().__post_init__(**{name: value for name, value in given.items() if name not in known})
        self._check()
        encoding.check(self)

    def _refuse_keys(self, given: dict[str, Any]) -> None:
        chosen = self.position_encoding_type
        encoding = positions.encoding(chosen)
        own = ", ".join(sorted(encoding.defaults)) or "no parameters"
        for name, value in given.items():
            owners = positions.owners(name)
            if name in encoding.refused and value not in (None, False):
                raise ValueError(f"{name} must be left out, got {value!r}: {encoding.refused[name]}")
            if owners and chosen not in owners and value is not None:
                raise ValueError(
                    f"{name} belongs to position_encoding_type {' and '.join(owners)}, got {value!r} for {chosen!r}, "
                    f"which takes {own}: leave {name} out"
                )
            prefixes = tuple(f"{known}_" for known in positions.available())
            if not owners and name.startswith(prefixes):
                raise ValueError(
                    f"{name} is not a key of any position encoding, got {value!r}: check the name; {chosen!r} takes "
                    f"{own}"
                )

    def _check(self) -> None:
        from transformers.activations import ACT2FN  # takes long to import

        require_whole("head_dim", self.head_dim, 1)
        for name in SWITCHES:
            require_one_of(name, getattr(self, name), (False, True))
        require_one_of("hidden_act", self.hidden_act, tuple(ACT2FN))
        require_above("rms_norm_eps", self.rms_norm_eps, 0)
        require_above("initializer_range", self.initializer_range, 0)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads must be a multiple of num_key_value_heads {self.num_key_value_heads}, got "
                f"{self.num_attention_heads}: every KV head serves the same number of query heads"
            )
