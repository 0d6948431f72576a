"""The journal: what a kill leaves, and what is refused."""

from __future__ import annotations

import pathlib

import pytest

from server.evaluation import EvaluationRefused
from server.evaluation.journal import open_journal

OPTIONS = {"samples": 2, "lengths": (64, 128)}


def written(folder: pathlib.Path) -> pathlib.Path:
    with open_journal(folder, "text", OPTIONS) as journal:
        journal.begin_target("a", {"model": "x"})
        journal.add("a", "1", 7, {"logprob": -1.5})
        journal.add("a", "2", 8, {"logprob": -2.5})
    return folder / "journal.jsonl"


def test_a_later_run_has_the_results_of_an_earlier_one(tmp_path: pathlib.Path) -> None:
    written(tmp_path)
    with open_journal(tmp_path, "text", OPTIONS) as journal:
        journal.begin_target("a", {"model": "x"})
        assert journal.results == {"a": {"1": {"logprob": -1.5}, "2": {"logprob": -2.5}}}


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_torn_line_is_cut_off_and_lines_before_it_are_kept(cut: int, tmp_path: pathlib.Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with open_journal(tmp_path, "text", OPTIONS) as journal:
        assert list(journal.results["a"]) == ["1"]
        journal.add("a", "2", 8, {"logprob": -9.0})
    with open_journal(tmp_path, "text", OPTIONS) as journal:
        assert journal.results["a"]["2"] == {"logprob": -9.0}


def test_another_configuration_is_refused_with_what_differs(tmp_path: pathlib.Path) -> None:
    written(tmp_path)
    told = r"has an evaluation of another configuration \(samples was 2, is 3\): give the same options"
    with pytest.raises(EvaluationRefused, match=told), open_journal(tmp_path, "text", {**OPTIONS, "samples": 3}):
        pass
    with (
        pytest.raises(EvaluationRefused, match='task was "text", is "short"'),
        open_journal(tmp_path, "short", OPTIONS),
    ):
        pass


def test_another_target_of_the_same_name_is_refused_and_a_further_one_is_added(tmp_path: pathlib.Path) -> None:
    written(tmp_path)
    with open_journal(tmp_path, "text", OPTIONS) as journal:
        journal.begin_target("b", {"model": "y"})
        with pytest.raises(EvaluationRefused, match=r'--target a: .*\(model was "x", is "y"\)'):
            journal.begin_target("a", {"model": "y"})


def test_a_target_that_did_not_start_may_be_mended_and_asked_again(tmp_path: pathlib.Path) -> None:
    for model in ("does-not-start", "starts"):
        with open_journal(tmp_path, "text", OPTIONS) as journal:
            journal.begin_target("a", {"model": model})
    with open_journal(tmp_path, "text", OPTIONS) as journal:
        assert journal.targets == {"a": {"model": "starts"}}


def test_two_processes_do_not_write_to_one_folder(tmp_path: pathlib.Path) -> None:
    with open_journal(tmp_path, "text", OPTIONS):  # noqa: SIM117
        with (
            pytest.raises(EvaluationRefused, match="another evaluation writes to"),
            open_journal(tmp_path, "text", OPTIONS),
        ):
            pass


def test_what_is_no_journal_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(EvaluationRefused, match="is no journal"), open_journal(tmp_path, "text", OPTIONS):
        pass
