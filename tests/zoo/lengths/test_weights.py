"""The shipped decoders: small, made by the recipe beside the code to its end, and saved in bfloat16."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml
from transformers import AutoTokenizer

from posenc_runtime.zoo.counting.evaluate import load_model
from posenc_runtime.zoo.lengths import vocabulary
from posenc_runtime.zoo.lengths.problems import TASKS, problems
from posenc_runtime.zoo.lengths.recipe import WEIGHTS, Recipe
from posenc_runtime.zoo.lengths.train import is_finished

FOLDERS = sorted(path.parent for path in WEIGHTS.glob("*/*/recipe.yaml"))
every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=[f"{path.parent.name} {path.name}" for path in FOLDERS])


@every_folder
def test_the_weights_were_made_by_the_recipe_to_its_end(folder: Path) -> None:
    recipe = Recipe.load(folder.parent.name)
    made = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
    assert is_finished(recipe, folder.name, folder)
    assert made["settings"] == recipe.settings(folder.name)
    assert made["result"]["steps"] == recipe.steps


@every_folder
def test_the_weights_load_and_are_of_the_encoding_that_the_folder_is_named_after(folder: Path) -> None:
    assert load_model(folder).config.position_encoding_type == folder.name
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["dtype"] == "bfloat16"


def test_each_is_smaller_than_6_megabytes_and_all_together_are_smaller_than_60() -> None:
    sizes = [path.stat().st_size for path in WEIGHTS.glob("*/*/model.safetensors")]
    assert all(size < 6_000_000 for size in sizes)
    assert sum(sizes) < 60_000_000


@every_folder
def test_every_loss_went_down(folder: Path) -> None:
    with (folder / "loss_curve.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for name in (name for name in rows[0] if name.endswith("_loss")):
        first, last = (sum(float(row[name]) for row in some) for some in (rows[:5], rows[-5:]))
        assert last < 0.8 * first


@every_folder
def test_the_tokenizer_reads_text_as_training_does(folder: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(folder)
    if folder.parent.name == "text":
        text = "def spam(eggs):\n    return 12"
        assert loaded(text)["input_ids"] == vocabulary.of_text()(text)["input_ids"]
        return
    for task in TASKS:
        (problem,) = problems(task, 7, 1, seed=0)
        assert loaded(problem.text)["input_ids"] == vocabulary.ids_of(problem.prompt)
