"""What a training run leaves behind: the state to resume from, the checkpoint folder, its recipe and its loss curve."""

from __future__ import annotations

import csv
import hashlib
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
import yaml
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from posenc_runtime.zoo import tokenizer
from posenc_runtime.zoo.recipe import Recipe

STATE_FILE = "training_state.pt"
CURVE_COLUMNS = (
    "step", "tokens", "seconds", "length", "loss", "recall_loss", "text_loss", "recall_accuracy", "lr_scale",
)  # fmt: skip


@dataclass
class Progress:
    """How far a run has come. All fields are plain data, so that loading a state file runs no code."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_score: float = -1.0
    best_step: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    schedules: list[dict[str, int]] = field(default_factory=list)
    fingerprint: str = ""  # of the recipe, where one is checked


def save_state(folder: Path, progress: Progress, model: PreTrainedModel, optimizer: dict[str, Any]) -> None:
    """Write the state to a second file, then rename that, so that an interruption never leaves half a file."""
    partial = folder / (STATE_FILE + ".partial")
    torch.save({"progress": asdict(progress), "model": model.state_dict(), "optimizer": optimizer}, partial)
    os.replace(partial, folder / STATE_FILE)


def has_state(folder: Path) -> bool:
    return (folder / STATE_FILE).exists()


def load_state(folder: Path) -> tuple[Progress, dict[str, Any], dict[str, Any]]:
    state = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
    return Progress(**state["progress"]), state["model"], state["optimizer"]


def save_checkpoint(folder: Path, model: PreTrainedModel, tok: PreTrainedTokenizerFast) -> None:
    """Write the checkpoint folder that transformers and vLLM load."""
    kind: Any = GenerationConfig
    end = model.config.eos_token_id
    model.generation_config = kind(do_sample=False, eos_token_id=end, pad_token_id=end)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save(tok, folder)


def weights_sha256(folder: Path) -> str:
    """The hash of a checkpoint's weights, in hexadecimal digits."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def write_loss_curve(folder: Path, progress: Progress, columns: Sequence[str] = CURVE_COLUMNS) -> None:
    with (folder / "loss_curve.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(progress.curve)


def write_recipe(folder: Path, recipe: Recipe, progress: Progress, corpus_facts: dict[str, Any]) -> None:
    """Write the recipe's settings and the run's results. Tuples become lists, which every YAML reader understands."""
    written = {
        "settings": plain(asdict(recipe)),
        "corpus": corpus_facts,
        **provenance(),
        "result": {
            "steps": progress.step,
            "schedules": progress.schedules,
            "tokens": progress.tokens,
            "minutes": round(progress.seconds / 60, 1),
            "kept_step": progress.best_step,
            "best_score": progress.best_score,
            "evaluations": progress.evaluations,
        },
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")


def provenance() -> dict[str, Any]:
    """The versions and the machine that a run was made with."""
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
    }


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
