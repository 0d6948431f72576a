"""How the decoders of the counting task are trained: ``recipe.yaml``, the same for all encodings but for their keys."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.zoo.counting.task import LONGEST
from posenc_runtime.zoo.counting.vocabulary import END, WORDS
from posenc_runtime.zoo.outputs import plain

FILE = Path(__file__).with_name("recipe.yaml")
WEIGHTS = Path(__file__).with_name("weights")


@dataclass(frozen=True)
class Stage:
    """From `start` on, a share of all steps, programs have at most `most_statements`, drawn with `pass_weight`."""

    start: float
    most_statements: int
    pass_weight: float


@dataclass(frozen=True)
class Recipe:
    """Every setting; ``recipe.yaml`` says what each one means."""

    seed: int
    num_variables: tuple[int, ...]
    steps: int
    tokens_per_step: int
    most_programs: int
    curriculum: tuple[Stage, ...]
    mention_loss_weight: float
    name_loss_weight: float
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
    encodings: dict[str, dict[str, Any]]

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

    def settings(self, encoding: str) -> dict[str, Any]:
        """The settings that the run of one encoding depends on, as plain data."""
        of_all = asdict(self)
        of_all["encodings"] = {encoding: self.encodings[encoding]}
        settings: dict[str, Any] = plain(of_all)
        return settings

    def fingerprint(self, encoding: str) -> str:
        return hashlib.sha256(json.dumps(self.settings(encoding), sort_keys=True).encode()).hexdigest()

    def stage(self, step: int) -> Stage:
        return [stage for stage in self.curriculum if step >= stage.start * self.steps][-1]

    def model_config(self, encoding: str) -> PosencConfig:
        return PosencConfig(
            **self.encodings[encoding],
            vocab_size=len(WORDS),
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            max_position_embeddings=LONGEST,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=END,
            eos_token_id=END,
        )
