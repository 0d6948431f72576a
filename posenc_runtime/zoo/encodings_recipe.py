"""What recipes have in common that train one decoder for each position encoding, all with the same settings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.zoo.outputs import plain


@dataclass(frozen=True, kw_only=True)
class EncodingsRecipe:
    """The decoder, its optimizer, and the encodings that are trained, each with the keys of its configuration."""

    seed: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    matrix_lr: float
    other_lr: float
    weight_decay: float
    gradient_clip: float
    warmup_steps: int
    final_lr_share: float
    steps: int
    encodings: dict[str, dict[str, Any]]

    def settings(self, encoding: str) -> dict[str, Any]:
        """The settings that the run of one encoding depends on, as plain data."""
        of_all = asdict(self)
        of_all["encodings"] = {encoding: self.encodings[encoding]}
        settings: dict[str, Any] = plain(of_all)
        return settings

    def fingerprint(self, encoding: str) -> str:
        return hashlib.sha256(json.dumps(self.settings(encoding), sort_keys=True).encode()).hexdigest()

    def decoder_config(self, encoding: str, *, vocab_size: int, longest: int, end: int, **others: Any) -> PosencConfig:
        """The decoder's configuration.

        Args:
            longest: ``max_position_embeddings``.
            end: the token that ends a text and stands before one.
            others: further keys of the configuration.
        """
        return PosencConfig(
            **self.encodings[encoding],
            **others,
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            max_position_embeddings=longest,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=end,
            eos_token_id=end,
        )
