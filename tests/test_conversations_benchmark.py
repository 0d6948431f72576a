"""The table of the benchmark of conversations: ratios conversation by conversation, and sums of what was prefilled."""

from __future__ import annotations

from tests.benchmarks.conversations import Turn, results_table


def test_ratios_are_medians_over_pairs_of_the_same_conversation() -> None:
    static = [
        [Turn(0.010, 300), Turn(0.010, 50)],
        [Turn(0.100, 300), Turn(0.200, 50)],
        [Turn(0.020, 300), Turn(0.02, 50)],
    ]
    turning = [
        [Turn(0.011, 300), Turn(0.030, 60)],
        [Turn(0.090, 300), Turn(0.200, 60)],
        [Turn(0.024, 300), Turn(0.04, 60)],
    ]
    table = results_table({"static": static, "turning": turning})
    assert table.rows == (
        ("1", "20 ms", "1.10", "300", "300"),
        ("2", "20 ms", "2.00", "50", "60"),
        ("all", "", "1.55", "350", "360"),
    )
