"""What benchmarks report: estimates with their intervals, tables, and a record of how they were made."""

from __future__ import annotations

import json
import pathlib

import pytest

from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.intervals import Estimate, median_and_quartiles, median_and_range, paired_ratio, wilson


@pytest.mark.parametrize(
    ("correct", "samples", "low", "high"),
    [
        # Newcombe 1998, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_wilson_interval_has_the_published_values(correct: int, samples: int, low: float, high: float) -> None:
    estimate = wilson(correct, samples)
    assert estimate.value == correct / samples
    assert estimate.low == pytest.approx(low, abs=1e-4)
    assert estimate.high == pytest.approx(high, abs=1e-4)


def test_the_wilson_interval_of_all_correct_ends_at_one_and_has_a_width() -> None:
    estimate = wilson(200, 200)
    assert estimate.high == pytest.approx(1.0)
    assert 0.975 < estimate.low < 0.99


@pytest.mark.parametrize(("correct", "samples"), [(3, 2), (-1, 2), (0, 0)])
def test_an_impossible_count_is_refused(correct: int, samples: int) -> None:
    with pytest.raises(ValueError, match="correct must be"):
        wilson(correct, samples)


def test_quartiles_are_those_of_the_values_themselves() -> None:
    assert median_and_quartiles([5, 1, 4, 2, 3]) == Estimate(3, 2, 4)
    assert median_and_quartiles([7]) == Estimate(7, 7, 7)


def test_a_range_goes_from_the_smallest_to_the_largest_value() -> None:
    assert median_and_range([5, 1, 4, 2, 3]) == Estimate(3, 1, 5)
    with pytest.raises(ValueError, match="at least one"):
        median_and_range([])


def test_the_ratio_is_taken_pair_by_pair_and_so_survives_a_machine_that_slows_down() -> None:
    ratio = paired_ratio([98, 49, 9.8], [100, 50, 10])
    assert ratio.value == ratio.low == ratio.high == pytest.approx(0.98)


def test_pairs_of_which_one_side_is_missing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        paired_ratio([1, 2], [1])


def test_an_estimate_reads_as_a_value_with_its_interval() -> None:
    assert f"{Estimate(0.97, 0.941, 0.989):.2f}" == "0.97 (0.94 to 0.99)"
    assert f"{Estimate(1, 0.5, 1)}" == "1.00 (0.50 to 1.00)"


def test_a_table_is_written_as_markdown() -> None:
    table = Table("T", ("name", "x"), (("a|b", "1"), ("c", "22222")))
    assert table.as_markdown().splitlines() == [
        "| name |     x |",
        "| :--- | ----: |",
        "| a\\|b |     1 |",
        "| c    | 22222 |",
    ]


def test_a_row_with_too_few_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 2 cells"):
        Table("T", ("name", "x"), (("a",),))


def test_a_record_says_when_and_how_and_names_no_folder(tmp_path: pathlib.Path) -> None:
    line = record.command(
        "tests.benchmarks", ["--out", str(tmp_path / "speed"), f"--config={tmp_path}/a.yaml", "--eager"]
    )
    assert line == "python -m tests.benchmarks --out speed --config=a.yaml --eager"
    provenance = record.Provenance("2026-01-02", line, record.versions(), record.machine())
    files = record.write(tmp_path / "new" / "speed", {"cases": []}, provenance, "| table |")
    assert [file.name for file in files] == ["speed.json", "speed.md"]
    written = json.loads(files[0].read_text())
    assert {"date", "command", "versions", "machine", "cases"} == written.keys()
    assert files[1].read_text().startswith("| table |\n\nMeasured on 2026-01-02 with Python ")
    assert str(tmp_path.parent) not in files[0].read_text() + files[1].read_text()
