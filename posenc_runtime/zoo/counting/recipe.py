"""How the decoders of the counting task are trained: ``recipe.yaml``, the same for all encodings but for their keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.zoo.counting.task import LONGEST
from posenc_runtime.zoo.counting.vocabulary import END, WORDS
from posenc_runtime.zoo.encodings_recipe import EncodingsRecipe

FILE = Path(__file__).with_name("recipe.yaml")
WEIGHTS = Path(__file__).with_name("weights")


@dataclass(frozen=True)
class Stage:
    """From `start` on, a share of all steps, programs have at most `most_statements`, drawn with `pass_weight`."""

    start: float
    most_statements: int
    pass_weight: float


@dataclass(frozen=True, kw_only=True)
class Recipe(EncodingsRecipe):
    """Every setting; ``recipe.yaml`` says what each one means."""

    num_variables: tuple[int, ...]
    tokens_per_step: int
    most_programs: int
    curriculum: tuple[Stage, ...]
    mention_loss_weight: float
    name_loss_weight: float

    @classmethod
    def load(cls, file: Path = FILE, **others: Any) -> Recipe:
        """Read the settings from a file.

        Args:
            others: settings that replace those of the file.
        """
        read = yaml.safe_load(file.read_text(encoding="utf-8")) | others
        read["num_variables"] = tuple(read["num_variables"])
        read["curriculum"] = tuple(Stage(**stage) for stage in read["curriculum"])
        return cls(**read)

    def stage(self, step: int) -> Stage:
        return [stage for stage in self.curriculum if step >= stage.start * self.steps][-1]

    def model_config(self, encoding: str) -> PosencConfig:
        return self.decoder_config(encoding, vocab_size=len(WORDS), longest=LONGEST, end=END)
