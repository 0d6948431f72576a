"""``posenc eval ruler``: tables from known scores, and the package's own samples where it is installed."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from server.evaluation.ruler import samples
from server.evaluation.ruler.samples import Sample
from tests.in_a_thread import running
from tests.server.evaluation.fake_server import Fake

Evaluate = Callable[..., tuple[int, str, str]]
INSTALLED = all(importlib.util.find_spec(name) for name in ("long_context_eval", "nltk", "punkt", "wonderwords"))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four needles for each length, at depths 0.1, 0.3, 0.5 and 0.7."""

    def read(folder: pathlib.Path, task: str, length: int) -> list[Sample]:
        depths = (0.1, 0.3, 0.5, 0.7)
        return [
            Sample(task, index, f"{task} {length} {index}", [str(index)], length - 8, 8, depth)
            for index, depth in enumerate(depths)
        ]

    monkeypatch.setattr(samples, "version", lambda: "made up")
    monkeypatch.setattr(samples, "make", lambda *_: None)
    monkeypatch.setattr(samples, "read", read)
    monkeypatch.setattr(samples, "score", lambda task, answer, references: float(references[0] in answer))


@pytest.mark.usefixtures("made_up")
def test_scores_lengths_and_depths_are_those_of_the_answers(
    model: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    def says(prompt: Any) -> str:
        _, length, index = str(prompt).split()
        return index if length == "256" or index in "01" else "nothing"

    with running(Fake(says=says)) as address:
        status, out, _ = evaluate(
            "ruler", "--target", f"a={address}", "--tokenizer", model, "--out", tmp_path / "out", "--task",
            "niah_single_1", "--task", "niah_single_2", "--length", 256, "--length", 512, "--samples", 4,
        )  # fmt: skip
    assert status == 0 and "0.50 (0.15 to 0.85)" in out  # Wilson's interval of 2 of 4
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["means"] == {"a": {"256": 1.0, "512": 0.5}} and found["effective_length"] == {"a": 256}
    assert (tmp_path / "out" / "needles.png").stat().st_size > 5000


@pytest.mark.usefixtures("made_up")
def test_targets_are_compared_with_the_first_sample_by_sample(
    model: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    def one_more(prompt: Any) -> str:
        return str(prompt).split()[-1] if str(prompt)[-1] in "012" else "nothing"

    with running(Fake(says=lambda prompt: "0")) as first, running(Fake(says=one_more)) as second:
        status, out, _ = evaluate(
            "ruler", "--target", f"a={first}", "--target", f"b={second}", "--tokenizer", model, "--out",
            tmp_path / "out", "--task", "niah_single_1", "--length", 256, "--samples", 4,
        )  # fmt: skip
    assert (
        status == 0 and "difference from a" in out and "+0.500 ± 0.919" in out
    )  # 1.837 is Student's t of 4, times 0.5
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["difference"]["256"]["b"]["value"] == 0.5 and "a" not in found["difference"]["256"]


@pytest.mark.usefixtures("made_up")
def test_prompts_of_a_chat_are_messages(model: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate) -> None:
    with running(fake := Fake(says=lambda prompt: "0")) as address:
        evaluate(
            "ruler", "--target", f"a={address}", "--tokenizer", model, "--out", tmp_path / "out", "--task", "vt",
            "--length", 256, "--samples", 4, "--chat",
        )  # fmt: skip
    assert fake.requests[0]["messages"] == [{"role": "user", "content": "vt 256 0"}]
    assert {body["max_tokens"] for body in fake.requests} == {8}


def test_without_its_packages_one_line_says_what_to_install(
    model: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, _, err = evaluate("ruler", "--target", "a=demo", "--out", tmp_path / "out")
    assert (status, len(err.splitlines())) == (2, 1) and err.endswith("pip install 'posenc[eval]'\n")


def test_a_task_that_ruler_does_not_have_is_refused(tmp_path: pathlib.Path, evaluate: Evaluate) -> None:
    status, _, err = evaluate("ruler", "--target", "a=demo", "--out", tmp_path / "out", "--task", "niah")
    assert status == 2 and err.startswith("refused --task: must be one of niah_single_1, ") and "got niah" in err


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(900)  # a program of the package sorts five million texts before it writes a needle
@pytest.mark.skipif(not INSTALLED, reason="needs the packages of posenc[eval]")
def test_the_packages_own_samples_fit_their_length_and_score_as_it_says(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    tasks = ["niah_single_1", "niah_multivalue", "cwe"]  # a tokenizer of bytes leaves the others too little room
    samples.version()
    samples.make(tmp_path, tasks, [8192], 2, 42, str(model))
    for task in tasks:
        found = samples.read(tmp_path, task, 8192)
        assert len(found) == 2 and all(4096 < each.length <= 8192 for each in found)
        for each in found:
            assert all(reference in each.prompt for reference in each.references)
            assert samples.score(task, ", ".join(each.references), each.references) == 1
            assert samples.score(task, "nothing of it", each.references) == 0
            assert (each.depth is not None) == (task == "niah_single_1")
    one, four = samples.read(tmp_path, "niah_single_1", 8192)[0], samples.read(tmp_path, "niah_multivalue", 8192)[0]
    assert one.depth == one.prompt.index(one.references[0]) / len(one.prompt)
    assert samples.score("niah_multivalue", four.references[2], four.references) == 0.25
