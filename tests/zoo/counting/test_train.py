"""Training: batches are those of the task and repeat, steps learn, and an interrupted run ends like a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posenc_runtime.zoo.counting.batches import NO_TARGET, make_batch
from posenc_runtime.zoo.counting.recipe import Recipe
from posenc_runtime.zoo.counting.task import FEWEST_STATEMENTS, MOST_STATEMENTS, PASS
from posenc_runtime.zoo.counting.train import Trainer
from posenc_runtime.zoo.counting.vocabulary import END, WORDS

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SHORT = [{"start": 0.0, "most_statements": 12, "pass_weight": 2}]


def small(**others: object) -> Recipe:
    return Recipe.load(**{**SMALL, "curriculum": SHORT, "tokens_per_step": 256, "warmup_steps": 2, **others})


def test_the_curriculum_ends_with_the_task_itself() -> None:
    recipe = Recipe.load()
    last = recipe.stage(recipe.steps - 1)
    assert (last.most_statements, last.pass_weight) == (MOST_STATEMENTS, PASS)


def test_every_target_is_the_value_that_the_text_gives() -> None:
    for step in range(5):
        batch = make_batch(small(), step)
        assert FEWEST_STATEMENTS <= batch.num_statements <= 12
        for ids, answers, mentions in zip(batch.ids, batch.answers, batch.mentions, strict=True):
            words = [WORDS[i] for i in ids]
            values: dict[str, int] = {}
            for place, word in enumerate(words):
                wanted = int(mentions[place])
                if wanted != NO_TARGET:
                    assert WORDS[wanted] == str(values[word])
                if word == "=":
                    values[words[place - 1]] = 0
                elif word == "++;":
                    values[words[place - 1]] += 1
            asked = words.index("print") + 1
            answer = int(answers[asked])
            assert WORDS[answer] == str(values[words[asked]]) == words[asked + 1]
            assert answers[asked + 1] == END
            assert (answers != NO_TARGET).sum() == 2


def test_every_word_that_changes_a_variable_asks_for_its_name() -> None:
    batch = make_batch(small(), 0)
    assert (batch.names != NO_TARGET).any()
    for ids, names in zip(batch.ids, batch.names, strict=True):
        words = [WORDS[i] for i in ids]
        asked = [place for place, target in enumerate(names) if target != NO_TARGET]
        assert asked == [place for place, word in enumerate(words) if word in ("=", "++;")]
        assert [WORDS[names[place]] for place in asked] == [words[place - 1] for place in asked]


def test_a_batch_depends_on_the_seed_and_the_step_alone() -> None:
    first, again, later = (make_batch(small(), step).ids for step in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, make_batch(small(seed=1), 3).ids)


@pytest.mark.parametrize("encoding", list(Recipe.load().encodings))
def test_some_steps_lower_the_loss(encoding: str, tmp_path: Path) -> None:
    trainer = Trainer(small(steps=30), encoding, tmp_path)
    losses = [trainer.step()["loss"] for _ in range(30)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_a_run_that_goes_on_ends_with_the_weights_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    recipe = small(steps=6)
    for name, stops in (("whole", (6,)), ("parts", (2, 6))):
        folder = tmp_path / name
        folder.mkdir()
        for stop in stops:
            trainer = Trainer(recipe, "cope", folder, resume=True)
            while trainer.progress.step < stop:
                trainer.step()
            trainer.record()
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]


def test_the_optimizer_keeps_tables_of_positions_out_of_muon() -> None:
    trainer = Trainer(small(), "cope", Path("unused"))
    of_muon = {id(p) for group in trainer.optimizer.muon.groups.values() for p in group}
    names = {name for name, p in trainer.model.named_parameters() if id(p) in of_muon}
    assert names
    assert all(name.endswith("_proj.weight") for name in names)
