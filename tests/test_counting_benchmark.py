"""The pure parts of the counting benchmark: its table, its counts, and how a checkpoint is served."""

from __future__ import annotations

import pathlib

import pytest
import typer
import yaml

from posenc_runtime.zoo.counting.task import LONGEST, make_program
from posenc_runtime.zoo.counting.vocabulary import ids_of
from tests.benchmarks.counting import Cell, chosen, command, remark, results_table, to_json

RESULTS = {
    "rope": [Cell(1, 1000, 20), Cell(3, 1000, 100), Cell(5, 1000, 150)],
    "shaw": [Cell(1, 1000, 5), Cell(3, 1000, 80), Cell(5, 1000, 130)],
    "cope": [Cell(1, 1000, 0), Cell(3, 1000, 10), Cell(5, 1000, 30)],
}


def test_the_table_sets_what_was_measured_beside_what_was_published() -> None:
    table = results_table(RESULTS)
    assert table.headings == ("encoding", "1 variable", "paper", "3 variables", "paper", "5 variables", "paper")
    rows = {row[0]: row[1:] for row in table.rows}
    assert [rows["cope"][place] for place in (1, 3, 5)] == ["0.0", "1.2", "7.4"]
    assert [rows["shaw (the paper's relative)"][place] for place in (1, 3, 5)] == ["1.1", "17.8", "22.4"]
    assert rows["rope"][1] == ""
    # Wilson's interval of 10 of 1000, from a table of binomial intervals
    assert rows["cope"][2] == "1.0 (0.5 to 1.8)"
    assert "1000 programs a cell" in table.title


def test_wrong_answers_and_prompts_that_were_read_otherwise_are_counted() -> None:
    program = make_program(3, 0)
    length = len(ids_of(program))
    cell = Cell(3)
    cell.count(program, f" {program.answer}", length)
    cell.count(program, "11", length)
    cell.count(program, program.answer, length - 1)
    assert (cell.samples, cell.errors, cell.wrong_lengths) == (3, 1, 1)
    assert "counted 1 prompts otherwise" in remark({"cope": [cell]})
    assert "otherwise" not in remark(RESULTS)


def test_the_json_has_every_cell_with_its_interval() -> None:
    cells = to_json(RESULTS)
    assert len(cells) == 9
    assert cells[0]["encoding"] == "rope"
    assert cells[0]["error"]["value"] == 0.02
    assert cells[0]["error"]["low"] < 0.02 < cells[0]["error"]["high"]


def test_a_checkpoint_is_served_by_its_folder_and_no_scaling(tmp_path: pathlib.Path) -> None:
    started = command(tmp_path / "cope", tmp_path).on_port(8123)
    deployment = yaml.safe_load(pathlib.Path(started[started.index("--config") + 1]).read_text())
    assert deployment["model"] == str(tmp_path / "cope")
    assert deployment["max_model_len"] == LONGEST
    assert "scaling" not in deployment
    assert "server.port=8123" in started


def test_only_checkpoints_that_are_there_can_be_chosen(tmp_path: pathlib.Path) -> None:
    for name in ("rope", "cope"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    assert set(chosen(tmp_path, None)) == {"cope", "rope"}
    assert set(chosen(tmp_path, ["cope"])) == {"cope"}
    with pytest.raises(typer.BadParameter, match="shaw"):
        chosen(tmp_path, ["shaw"])
