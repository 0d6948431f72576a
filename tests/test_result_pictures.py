"""The pictures of results show the numbers of the files."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.benchmarks.result_pictures import draw_accuracy, draw_crossings, newest


def cell(deployment: str, length: int, decoys: int, value: float) -> dict[str, Any]:
    interval = {"value": value, "low": value - 0.05, "high": value + 0.05}
    return {"deployment": deployment, "haystack": {"length": length, "decoys": decoys}, "accuracy": interval}


def test_each_deployment_is_a_line_through_its_accuracies() -> None:
    cells = [
        cell("unscaled", 256, 0, 0.9), cell("unscaled", 512, 0, 0.3),
        cell("unscaled", 256, 6, 0.8), cell("unscaled", 512, 6, 0.2),
        cell("per-request YaRN", 256, 0, 0.9), cell("per-request YaRN", 512, 0, 0.7),
        cell("per-request YaRN", 256, 6, 0.8), cell("per-request YaRN", 512, 6, 0.6),
    ]  # fmt: skip
    alone, among = draw_accuracy({"cells": cells, "trained_length": 256}).axes
    drawn = {
        axes.get_title(loc="left") or axes.get_title(): {
            line.get_label(): list(line.get_ydata()) for line in axes.lines if not str(line.get_label()).startswith("_")
        }
        for axes in (alone, among)
    }
    assert drawn == {
        "alone in the text": {"unscaled": [0.9, 0.3], "per-request YaRN": [0.9, 0.7]},
        "among 6 other codes": {"unscaled": [0.8, 0.2], "per-request YaRN": [0.8, 0.6]},
    }


def crossed(trained: int, budget: int | None, worst: float, *, keeps_prefix: bool = True) -> dict[str, Any]:
    return {
        "case": {"trained": trained, "budget": budget, "keeps_prefix": keeps_prefix},
        "usual": [0.01, 0.01],
        "crossing": [[0.01, 0.01 * worst]],
        "first_token": [1.0],
        "budget": None if budget else {"tokens": 100, "reason": "measured"},
    }


def test_a_crossings_cost_is_drawn_by_what_is_turned_before_a_step() -> None:
    cases = [
        crossed(4096, 2048, 3.0), crossed(4096, None, 1.5), crossed(4096, None, 9.0, keeps_prefix=False),
        crossed(16384, 2048, 2.0), crossed(16384, None, 1.25),
    ]  # fmt: skip
    others, own = draw_crossings({"cases": cases}).axes
    longest = [list(line.get_ydata()) for line in others.lines if line.get_linestyle() == "-"]
    waits = [list(line.get_ydata()) for line in own.lines if line.get_linestyle() == "-"]
    assert longest == [pytest.approx([1.5, 3.0]), pytest.approx([1.25, 2.0])]
    assert waits == [pytest.approx([25.0, 40.0]), pytest.approx([22.5, 30.0])]
    assert [text.get_text() for text in own.get_xticklabels()] == ["100\n(default)", "2,048"]


def test_the_newest_results_are_drawn(tmp_path: pathlib.Path) -> None:
    for name in ("2026-01-02-cpu-accuracy", "2026-01-10-cpu-accuracy", "2026-02-01-cpu-other-accuracy"):
        (tmp_path / f"{name}.json").write_text(json.dumps({}))
    assert newest("accuracy", tmp_path).name == "2026-01-10-cpu-accuracy.json"
    with pytest.raises(FileNotFoundError, match="no results named crossings"):
        newest("crossings", tmp_path)
