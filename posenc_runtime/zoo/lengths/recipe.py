"""How the decoders are trained: ``recipe.yaml``, the same for all encodings but for their keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.zoo.encodings_recipe import EncodingsRecipe

FILE = Path(__file__).with_name("recipe.yaml")
WEIGHTS = Path(__file__).with_name("weights")
SUBJECTS = ("text", "tasks")


@dataclass(frozen=True, kw_only=True)
class Recipe(EncodingsRecipe):
    """The settings of the runs on one subject; ``recipe.yaml`` says what each one means.

    Attributes:
        held_out: files of the standard library that no run on text reads.
        tokens_per_step: by the name of a batch.
        longest: of each task, the longest problem that a run on tasks gets: letters to copy, bits to add.
    """

    subject: str
    trained_length: int
    head_dim: int
    tokens_per_step: dict[str, int]
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

    def model_config(self, encoding: str, vocab_size: int, end: int) -> PosencConfig:
        """The decoder's configuration.

        Args:
            end: the token that ends a text and stands before one.
        """
        return self.decoder_config(
            encoding, vocab_size=vocab_size, longest=self.trained_length, end=end, head_dim=self.head_dim
        )
