"""How the decoders are trained: ``recipe.yaml``, the same for all encodings but for their keys."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.zoo.outputs import plain

FILE = Path(__file__).with_name("recipe.yaml")
WEIGHTS = Path(__file__).with_name("weights")
SUBJECTS = ("text", "tasks")


@dataclass(frozen=True)
class Recipe:
    """The settings of the runs on one subject; ``recipe.yaml`` says what each one means.

    Attributes:
        held_out: files of the standard library that no run on text reads.
        tokens_per_step: by the name of a batch.
        longest: of each task, the longest problem that a run on tasks gets: letters to copy, bits to add.
    """

    subject: str
    seed: int
    trained_length: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    matrix_lr: float
    other_lr: float
    weight_decay: float
    gradient_clip: float
    warmup_steps: int
    final_lr_share: float
    steps: int
    tokens_per_step: dict[str, int]
    encodings: dict[str, dict[str, Any]]
    held_out: tuple[str, ...] = ()
    longest: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, subject: str, file: Path = FILE, **others: Any) -> Recipe:
        """Read the settings for one subject from a file.

        Args:
            subject: one of ``SUBJECTS``.
            others: settings that replace those of the file.
        """
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
        of_subjects = {name: read.pop(name) for name in SUBJECTS}
        read |= of_subjects[subject] | others
        read["held_out"] = tuple(read.get("held_out", ()))
        return cls(subject=subject, **read)

    def settings(self, encoding: str) -> dict[str, Any]:
        """The settings that the run of one encoding depends on, as plain data."""
        of_all = asdict(self)
        of_all["encodings"] = {encoding: self.encodings[encoding]}
        settings: dict[str, Any] = plain(of_all)
        return settings

    def fingerprint(self, encoding: str) -> str:
        return hashlib.sha256(json.dumps(self.settings(encoding), sort_keys=True).encode()).hexdigest()

    def model_config(self, encoding: str, vocab_size: int, end: int) -> PosencConfig:
        """The decoder's configuration.

        Args:
            end: the token that ends a text and stands before one.
        """
        return PosencConfig(
            **self.encodings[encoding],
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.trained_length,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=end,
            eos_token_id=end,
        )
