"""The figures in README and the pages of ``docs`` are those of stored results."""

from __future__ import annotations

import re

import pytest

from tests.pages import DOCS, README, ROOT, section, tables

RESULTS = ROOT / "tests" / "benchmarks" / "results"
STORED = {
    "Accuracy": [
        "2026-11-21-cpu-accuracy",
        "2026-11-26-cpu-accuracy-methods",
        "2026-11-26-cpu-accuracy-clipped",
        "2026-11-28-cpu-accuracy-read-time",
    ],
    "Short requests": ["2026-11-26-smollm2-short/report", "2026-11-28-smollm2-read-time-short/report"],
    "Long texts": [
        "2026-11-26-smollm2-text/report",
        "2026-11-26-smollm2-crossing/report",
        "2026-11-28-smollm2-read-time-text/report",
        "2026-11-28-smollm2-read-time-temperature/report",
        "2026-11-29-smollm2-read-time-leak/report",
    ],
    "RULER": [
        "2026-11-26-smollm2-ruler/report",
        "2026-11-26-smollm2-ruler-16384/report",
        "2026-11-26-smollm2-ruler-values/report",
        "2026-11-26-smollm2-ruler-tasks/report",
        "2026-11-27-smollm2-ruler-values-16384/report",
        "2026-11-27-h100-smollm2-ruler/report",
        "2026-11-27-h100-smollm2-ruler-32768/report",
        "2026-11-28-smollm2-read-time-ruler-16384/report",
        "2026-11-29-smollm2-read-time-ruler-32768/report",
        "2026-11-29-smollm2-read-time-ruler-harder/report",
    ],
    "The order of far text": [
        "2026-11-29-smollm2-order-within/report",
        "2026-11-29-smollm2-order-16384/report",
        "2026-11-29-smollm2-order-leaks/report",
    ],
    "Conversations": ["2026-11-29-cpu-conversations"],
    "Growth": ["2026-11-21-cpu-growth"],
    "Crossings": ["2026-11-25-cpu-crossings"],
    "Budget": ["2026-11-25-budget"],
    "Prefix reuse": ["2026-11-21-cpu-growth"],
    "Throughput": [
        "2026-11-21-cpu-throughput",
        "2026-11-21-cpu-rerotate-over-pin",
        "2026-11-29-cpu-throughput-read-time",
        "2026-11-29-cpu-throughput-read-time-starts",
    ],
    "Scheduler": ["2026-11-25-cpu-scheduler"],
    "Attention on the CPU": [
        "2026-11-25-cpu-attention",
        "2026-11-29-cpu-read-time-zen4",
        "2026-11-29-cpu-read-time-zen4-groups",
    ],
    "Kernels on a GPU": ["2026-11-26-h100-kernels"],
    "An engine on a GPU": ["2026-11-27-h100-engine-stepped"],
    "Counting": ["2026-11-21-cpu-counting"],
}


def stored_tables(result: str) -> list[list[tuple[str, ...]]]:
    return tables((RESULTS / f"{result}.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("heading", STORED)
def test_every_row_of_a_result_is_one_that_was_measured(heading: str) -> None:
    measured = [table for result in STORED[heading] for table in stored_tables(result)]
    shown = [table for table in tables(section(DOCS / "results.md", heading)) if table[0] != ("Column", "Meaning")]
    assert shown
    for head, *rows in shown:
        assert any(set(rows) <= cut(table, heading, len(head)) for table in measured), head


def cut(table: list[tuple[str, ...]], heading: str, width: int) -> set[tuple[str, ...]]:
    """The rows of a stored table, without the columns at its end that a page leaves out.

    The scheduler's are shown for one number of blocks, scheduled ahead, without the columns that say so.
    """
    if heading == "Scheduler":
        return {(row[0], *row[3:]) for row in table if row[1:3] == ("8,192", "ahead")}
    return {row[:width] for row in table}


def test_every_section_of_the_results_is_compared() -> None:
    headings = re.findall(r"^## (.+)$", (DOCS / "results.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(STORED)


def test_every_row_of_the_page_of_encodings_is_one_that_was_measured() -> None:
    measured = {row for head, *rows in stored_tables("2026-11-26-cpu-lengths") for row in (head, *rows)}
    shown = tables(section(DOCS / "encodings.md", "Results"))
    assert shown
    assert all(set(table) <= measured for table in shown)


def test_every_row_of_the_page_of_rerope_is_one_that_was_measured() -> None:
    measured = {row for head, *rows in stored_tables("2026-11-28-cpu-accuracy-read-time") for row in (head, *rows)}
    [shown] = tables(section(DOCS / "methods" / "rerope.md", "When"))
    assert set(shown) <= measured


def test_readmes_table_of_accuracy_is_the_stored_one_without_intervals() -> None:
    head, *rows = stored_tables("2026-11-21-cpu-accuracy")[1]
    of_read_time, *turning = stored_tables("2026-11-28-cpu-accuracy-read-time")[0]
    assert of_read_time[: len(head)] == head
    stored = {row[0]: row[1 : len(head)] for row in (head, *rows, *turning)}
    [shown] = [table for table in tables(README.read_text(encoding="utf-8")) if table[0][0] == "deployment"]
    assert len(shown) == 5
    for deployment, *cells in shown:
        assert cells == [re.sub(r" \(.* to .*\)", "", cell) for cell in stored[deployment]]
    intervals = [cell for deployment, *_ in shown[1:] for cell in stored[deployment]]
    assert max(reach(cell) for cell in intervals) == pytest.approx(0.07)


def reach(cell: str) -> float:
    """How far an interval goes to either side of ``0.54 (0.47 to 0.61)``."""
    middle, low, high = map(float, re.findall(r"[\d.]+", cell))
    return max(middle - low, high - middle)
