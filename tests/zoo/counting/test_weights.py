"""The shipped decoders: small, made by the recipe beside the code, and able to count."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import pytest
import yaml
from transformers import AutoTokenizer

from posenc_runtime.zoo.counting import evaluate
from posenc_runtime.zoo.counting.recipe import WEIGHTS, Recipe
from posenc_runtime.zoo.counting.vocabulary import END, ids_of

FOLDERS = sorted(path.parent for path in WEIGHTS.glob("*/config.json"))
# Unlike those of training, of watching it and of the benchmark.
SEED = 9_000_000


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_the_weights_load_and_are_of_the_encoding_that_the_folder_is_named_after(folder: Path) -> None:
    config = evaluate.load_model(folder).config
    assert config.position_encoding_type == folder.name
    assert config.to_diff_dict().keys() >= Recipe.load().encodings[folder.name].keys() - {"position_encoding_type"}
    assert config.eos_token_id == END


def test_the_weights_are_smaller_than_8_megabytes_and_all_together_than_24() -> None:
    sizes = [(folder / "model.safetensors").stat().st_size for folder in FOLDERS]
    assert all(size < 8_000_000 for size in sizes)
    assert sum(sizes) < 24_000_000


def test_the_weights_were_made_by_the_recipe_to_its_end(folder: Path) -> None:
    recipe, made = Recipe.load(), yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
    assert made["settings"] == recipe.settings(folder.name)
    assert made["fingerprint"] == recipe.fingerprint(folder.name)
    assert made["result"]["steps"] == recipe.steps
    weights = (folder / "model.safetensors").read_bytes()
    assert made["result"]["weights_sha256"] == hashlib.sha256(weights).hexdigest()


def test_the_loss_went_down(folder: Path) -> None:
    with (folder / "loss_curve.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["mention_loss"]) < float(rows[0]["mention_loss"]) / 2


def test_the_tokenizer_reads_prompts_as_training_does(folder: Path) -> None:
    program = evaluate.programs(5, 1, SEED)[0]
    assert AutoTokenizer.from_pretrained(folder)(program.text)["input_ids"] == ids_of(program)


@pytest.mark.slow
def test_cope_errs_at_most_half_as_often_as_relative_embeddings_at_three_variables() -> None:
    asked = evaluate.programs(3, 100, SEED)
    cope, relative = (evaluate.count_errors(evaluate.load_model(WEIGHTS / name), asked) for name in ("cope", "shaw"))
    assert cope <= 10
    assert 2 * cope <= relative
