"""Intervals against published tables and worked examples."""

from __future__ import annotations

import math

import pytest

from server.evaluation.intervals import mean, t_quantile, wilson


@pytest.mark.parametrize(
    ("degrees", "printed"),
    [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (9, 2.262),
        (19, 2.093),
        (30, 2.042),
        (120, 1.980),
        (5000, 1.960),
    ],
)
def test_quantiles_of_student_are_those_of_printed_tables(degrees: int, printed: float) -> None:
    assert t_quantile(degrees) == pytest.approx(printed, abs=6e-4)


def test_a_mean_has_the_interval_of_the_formula_by_hand() -> None:
    # Mean 3, variance 2.5, standard error sqrt(0.5), 4 degrees of freedom: 2.776 * 0.7071 = 1.963.
    found = mean([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.value, found.samples) == (3.0, 5)
    assert found.low == pytest.approx(3 - 1.963, abs=1e-3) and found.high == pytest.approx(3 + 1.963, abs=1e-3)


def test_one_value_has_no_interval() -> None:
    assert math.isnan(mean([2.0]).low) and f"{mean([2.0]):.1f}" == "2.0" and mean([2.0]).as_json()["low"] is None


def test_wilsons_interval_is_that_of_its_authors_examples() -> None:
    # Newcombe 1998, table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for successes, samples, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ):
        found = wilson(successes, samples)
        assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert wilson(0, 20).low == 0 and wilson(0, 20).high == pytest.approx(0.1611, abs=1e-4)


# Of 6 none, and of 9 and 26 all.
@pytest.mark.parametrize("samples", [6, 9, 13, 20, 26])
def test_wilsons_interval_stays_within_0_and_1_where_rounding_would_leave_them(samples: int) -> None:
    assert f"{wilson(0, samples):.2f}".startswith("0.00 (0.00 to ")
    assert f"{wilson(samples, samples):.2f}".endswith(" to 1.00)")
    assert wilson(0, samples).low == 0 and wilson(samples, samples).high == 1


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="got 3 of 2"):
        wilson(3, 2)
    with pytest.raises(ValueError, match="got none"):
        mean([])
