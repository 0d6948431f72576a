"""Training: one budget for all, runs that go on after a kill to the bit, and only what is missing is trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from posenc_runtime.decoder import positions
from posenc_runtime.zoo import outputs
from posenc_runtime.zoo.lengths import train
from posenc_runtime.zoo.lengths.lessons import TasksLesson
from posenc_runtime.zoo.lengths.recipe import SUBJECTS, Recipe
from posenc_runtime.zoo.lengths.train import Trainer, is_finished

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
    "tokens_per_step": {"copying": 64, "addition": 64},
    "warmup_steps": 2,
    "steps": 6,
}
# ALiBi's square root is an option of vLLM's attention layers, and no paper's encoding.
NOT_TRAINED = {"alibi_sqrt"}


def small(**others: Any) -> Recipe:
    return Recipe.load("tasks", **{**SMALL, **others})


def trainer(folder: Path, encoding: str = "t5", **others: Any) -> Trainer:
    recipe = small(**others)
    folder.mkdir(exist_ok=True)
    return Trainer(recipe, encoding, TasksLesson(recipe), folder)


def quiet() -> Console:
    return Console(quiet=True)


def test_every_encoding_of_the_decoder_is_trained() -> None:
    for subject in SUBJECTS:
        assert set(Recipe.load(subject).encodings) == set(positions.available()) - NOT_TRAINED


@pytest.mark.parametrize("subject", SUBJECTS)
def test_encodings_differ_in_the_settings_of_the_encoding_alone(subject: str) -> None:
    recipe = Recipe.load(subject)
    configs = [recipe.model_config(name, 40, 0).to_dict() for name in recipe.encodings]
    own = {key for name in recipe.encodings for key in positions.encoding(name).defaults} | {"position_encoding_type"}
    assert all({k: v for k, v in c.items() if k not in own} == {k: v for k, v in configs[0].items() if k not in own}
               for c in configs)  # fmt: skip
    assert recipe.trained_length == 512


@pytest.mark.parametrize("encoding", list(Recipe.load("tasks").encodings))
def test_some_steps_lower_the_loss_of_what_they_were_on(encoding: str, tmp_path: Path) -> None:
    run = trainer(tmp_path, encoding, steps=24)

    def loss() -> float:
        with torch.no_grad():
            return sum(float(run.loss(each.ids, each.targets)) for n in range(24) for each in run.lesson.batches(n))

    before = loss()
    for _ in range(24):
        run.step()
    assert loss() < 0.95 * before


def test_a_killed_run_goes_on_to_the_weights_of_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "SAVE_EVERY", 2)
    assert trainer(tmp_path / "whole").run(quiet())
    killed = trainer(tmp_path / "killed")
    # Two states are saved, and a third one is half written when the process ends.
    killed.advance(quiet(), 5, None)
    (tmp_path / "killed" / (outputs.STATE_FILE + ".partial")).write_bytes(b"half a state")
    again = trainer(tmp_path / "killed")
    assert again.progress.step == 4
    assert again.run(quiet())
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]


def test_a_stopped_run_leaves_a_state_and_a_finished_one_leaves_none(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    assert not run.run(quiet(), minutes=0)
    assert outputs.has_state(tmp_path)
    assert not is_finished(run.recipe, "t5", tmp_path)
    assert trainer(tmp_path).run(quiet())
    assert not outputs.has_state(tmp_path)
    assert is_finished(run.recipe, "t5", tmp_path)


def test_a_damaged_or_outdated_checkpoint_is_missing(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.run(quiet())
    assert not is_finished(small(seed=1), "t5", tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not is_finished(run.recipe, "t5", tmp_path)


def test_a_state_of_other_settings_is_refused(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.advance(quiet(), 1, None)
    run.save()
    with pytest.raises(ValueError, match="delete the file to train t5 on tasks anew"):
        trainer(tmp_path, other_lr=0.1)


def test_the_command_trains_what_is_missing_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Recipe.load
    monkeypatch.setattr(Recipe, "load", lambda subject: dataclasses.replace(full(subject), **SMALL))
    import typer

    app = typer.Typer()
    app.command()(train.main)
    arguments = ["--subject", "tasks", "--encoding", "none", "--encoding", "rope", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "wrote tasks/rope" in first.output and "wrote tasks/none" in first.output
    assert sorted(path.name for path in (tmp_path / "tasks").iterdir()) == ["none", "rope"]
    again = CliRunner().invoke(app, arguments)
    assert "wrote" not in again.output
    assert "nothing is missing" in again.output
    refused = CliRunner().invoke(app, ["--encoding", "rotary"])
    assert refused.exit_code == 2
