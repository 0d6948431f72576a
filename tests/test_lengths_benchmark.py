"""The pure parts of the length benchmark: its pieces of text, its cells and tables, and how a checkpoint is served."""

from __future__ import annotations

import json
import math
import pathlib

import pytest
import typer
import yaml

from posenc_runtime.zoo.lengths.problems import Problem
from posenc_runtime.zoo.lengths.recipe import Recipe
from tests.benchmarks import lengths
from tests.benchmarks.lengths import BLOCK, LENGTHS, PROBLEM_LENGTHS, TaskCell, TextCell

TEXT = {"weights_sha256": "1", "cells": [{"length": 512, "blocks": [1.0, 3.0]}, {"length": 1024, "blocks": [2.0, 2.0]}]}
TASKS = {
    "weights_sha256": "2",
    "cells": [
        {"task": task, "length": length, "samples": 100, "solved": 50}
        for task, of_task in PROBLEM_LENGTHS.items()
        for length in of_task
    ],
}


def checkpoint(folder: pathlib.Path, encoding: str) -> pathlib.Path:
    folder.mkdir(parents=True)
    Recipe.load("text").model_config(encoding, 40, 0).save_pretrained(folder)
    (folder / "recipe.yaml").touch()
    return folder


@pytest.mark.parametrize("length", LENGTHS)
def test_pieces_of_every_length_have_one_text_and_fit_with_start_and_answer(length: int) -> None:
    row = list(range(1000, 1000 + BLOCK * lengths.BLOCKS_PER_FILE))
    made = lengths.pieces(row, length)
    assert [token for piece in made for token in piece[1:]] == row
    assert {piece[0] for piece in made} == {0}
    assert all(length - 2 * length // 512 <= len(piece) + 1 <= length for piece in made)


def test_perplexity_is_of_the_mean_over_all_blocks() -> None:
    found = TextCell(512, [1.0, 2.0, 3.0]).perplexity()
    assert found.value == pytest.approx(math.exp(2.0))
    # the standard deviation is 1, so the standard error is 1 over the root of 3
    assert found.high / found.value == pytest.approx(math.exp(1.96 / 3**0.5))
    assert found.low < found.value < found.high


def test_only_whole_answers_count() -> None:
    cell = TaskCell("addition", 2)
    problem = Problem(("1", "1", "+", "0", "1", "="), ("1", "0", "1"), 2)
    for said in (" 1 0 1", "1 0 1 0", "1"):
        cell.count(problem, said)
    assert (cell.samples, cell.solved) == (3, 1)


def test_the_tables_say_none_where_an_encoding_has_no_positions() -> None:
    text, copying, addition = lengths.tables({"text/learned": TEXT, "tasks/t5": TASKS, "tasks/rope": TASKS})
    assert text.rows == (("learned", "7.4", "7.4", "none", "none", "none", ""),)
    assert [row[0] for row in copying.rows] == ["rope", "t5"]
    assert [row[-1] for row in addition.rows] == ["3", "1"]
    # Wilson's interval of 50 of 100, from a table of binomial intervals
    assert copying.rows[0][1] == "0.50 (0.40 to 0.60)"


def test_a_checkpoint_is_served_as_far_as_its_encoding_has_positions(tmp_path: pathlib.Path) -> None:
    served = {}
    for encoding in ("learned", "sinusoidal", "alibi", "xpos", "rope"):
        folder = checkpoint(tmp_path / encoding, encoding)
        place = tmp_path / f"of {encoding}"
        place.mkdir()
        started = lengths.command(folder, "text", place).on_port(8123)
        deployment = yaml.safe_load(pathlib.Path(started[started.index("--config") + 1]).read_text())
        assert deployment["model"] == str(folder)
        assert deployment.get("scaling", {}).get("scales") == ([1] if encoding == "rope" else None)
        served[encoding] = deployment["max_model_len"]
    assert served == {"learned": 512, "sinusoidal": 512, "alibi": 8192, "xpos": 8192, "rope": 8192}
    assert [cell.length for cell, _ in lengths.text_pieces(tmp_path / "learned")] == [512]
    assert [cell.length for cell, _ in lengths.text_pieces(tmp_path / "xpos")] == list(LENGTHS)


def test_the_longest_problem_and_its_answer_fit() -> None:
    for cell, samples in lengths.task_problems(3, 0):
        assert len(samples) == 3
        for problem in samples:
            # a start, the prompt, the answer, its end and one token more
            assert len(problem.prompt) + len(problem.answer) + 3 <= lengths.LONGEST_PROBLEM
            assert problem.length == cell.length


def test_problems_begin_at_the_longest_trained_one_and_end_at_twice_that() -> None:
    for task, longest in Recipe.load("tasks").longest.items():
        assert (PROBLEM_LENGTHS[task][0], PROBLEM_LENGTHS[task][-1]) == (longest, 2 * longest)


def test_a_result_of_other_samples_is_not_gone_on_with(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "result"
    assert lengths.known(out, {"seed": 1}) == {}
    out.with_name("result.json").write_text(json.dumps({"seed": 1, "runs": {"text/rope": TEXT}}))
    assert lengths.known(out, {"seed": 1}) == {"text/rope": TEXT}
    with pytest.raises(typer.BadParameter, match="seed"):
        lengths.known(out, {"seed": 2})


def test_only_trained_encodings_can_be_chosen(tmp_path: pathlib.Path) -> None:
    for name in ("alibi", "rope"):
        checkpoint(tmp_path / "text" / name, name)
    assert list(lengths.chosen(tmp_path, "text", None)) == ["rope", "alibi"]
    with pytest.raises(typer.BadParameter, match="must be one of rope, alibi, got t5"):
        lengths.chosen(tmp_path, "text", ["t5"])
