"""What runs learn from: batches repeat, targets are right, and held-out text is in no batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from posenc_runtime.zoo import corpus
from posenc_runtime.zoo.lengths import lessons, vocabulary
from posenc_runtime.zoo.lengths.lessons import NO_TARGET, TasksLesson, TextLesson
from posenc_runtime.zoo.lengths.recipe import Recipe


def lines_in_fives(text: str) -> set[tuple[str, ...]]:
    """Each five lines that follow each other, without blank lines and indentation."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return {tuple(lines[place : place + 5]) for place in range(len(lines) - 4)}


@pytest.fixture
def text_lesson(monkeypatch: pytest.MonkeyPatch) -> TextLesson:
    def few(without: tuple[str, ...]) -> list[str]:
        return [f"def number_{n}(): return {n}\n" * 60 for n in range(20)]

    monkeypatch.setattr(corpus, "documents", few)
    return TextLesson(Recipe.load("text"))


def test_no_document_for_training_comes_from_a_held_out_file(tmp_path: Path) -> None:
    for name in ("kept.py", "held.py"):
        (tmp_path / name).write_text(f'"""About {name}."""\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "held.py").write_text('"""About another file."""\n')
    written = "\n".join(corpus.documents(tmp_path, without=("held.py",)))
    assert "About kept.py" in written
    assert "About held.py" not in written
    assert "About another file" in written


def test_held_out_files_share_almost_no_lines_with_the_others() -> None:
    held = lessons.held_out_texts(Recipe.load("text"))
    others: set[tuple[str, ...]] = set()
    for path in corpus.stdlib_files():
        if path.relative_to(corpus.stdlib()).as_posix() not in held:
            others |= lines_in_fives(corpus.read_text(path))
    for text in held.values():
        own = lines_in_fives(text)
        assert len(own) > 1000
        assert len(own & others) < 0.01 * len(own)


def test_targets_of_text_are_the_next_tokens(text_lesson: TextLesson) -> None:
    (batch,) = text_lesson.batches(4)
    recipe = Recipe.load("text")
    assert batch.ids.shape == (recipe.tokens_per_step["text"] // recipe.trained_length, recipe.trained_length)
    assert torch.equal(batch.targets[:, :-1], batch.ids[:, 1:])
    rows = np.lib.stride_tricks.sliding_window_view(text_lesson.ids, recipe.trained_length)
    assert all((rows == row.numpy()).all(axis=1).any() for row in batch.ids)


def test_targets_of_tasks_are_the_answers_and_their_ends() -> None:
    lesson = TasksLesson(Recipe.load("tasks"))
    lengths: dict[str, set[int]] = {"copying": set(), "addition": set()}
    for step in range(120):
        for batch in lesson.batches(step):
            for ids, targets in zip(batch.ids[:2], batch.targets[:2], strict=True):
                words = [vocabulary.WORDS[i] for i in ids]
                equals = words.index("=")
                asked = [vocabulary.WORDS[i] for i in targets if i != NO_TARGET]
                first = int((targets != NO_TARGET).nonzero()[0])
                assert first == equals
                assert asked[-1] == vocabulary.WORDS[vocabulary.END]
                if batch.name == "copying":
                    assert asked[:-1] == words[1:equals]
                    lengths["copying"].add(equals - 1)
                else:
                    plus = words.index("+")
                    sides = ("".join(words[1:plus]), "".join(words[plus + 1 : equals]))
                    assert int("".join(asked[:-1])[::-1], 2) == sum(int(side[::-1], 2) for side in sides)
                    lengths["addition"].add(plus - 1)
    assert lengths == {"copying": set(range(1, 11)), "addition": set(range(1, 7))}


def test_a_batch_depends_on_the_seed_and_the_step_alone(text_lesson: TextLesson) -> None:
    for lesson, other in (
        (text_lesson, TextLesson(Recipe.load("text", seed=1))),
        (TasksLesson(Recipe.load("tasks")), TasksLesson(Recipe.load("tasks", seed=1))),
    ):
        first, again, later, of_other_seed = (
            torch.cat([batch.ids.flatten() for batch in source.batches(step)])
            for source, step in ((lesson, 3), (lesson, 3), (lesson, 4), (other, 3))
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, later)
        assert not torch.equal(first, of_other_seed)
