"""The row of each token in the stacked table: the reference by hand, the kernel against the reference."""

from __future__ import annotations

import pytest
import torch

from posenc_runtime.kernels import ops
from tests.kernels.processes import output_of

OFFSETS = torch.tensor([0, 0, 512, 1536, 512])  # of the scale that each block carries


@pytest.mark.parametrize(
    ("slots", "positions", "rows"),
    [
        pytest.param([16], [0], [0], id="first-slot-of-an-unscaled-block"),
        pytest.param([32, 47, 48], [5, 6, 7], [517, 518, 1543], id="block-boundaries"),
        pytest.param([-1, 40], [9, 9], [9, 521], id="a-token-that-is-not-written"),
        pytest.param([64], [1, 2, 3], [513, 2, 3], id="padding-past-the-slots"),
        pytest.param([64, 65, 66], [1], [513], id="more-slots-than-tokens"),
        pytest.param([], [], [], id="no-token"),
    ],
)
def test_a_token_takes_the_row_of_its_position_in_the_part_of_its_blocks_scale(
    slots: list[int], positions: list[int], rows: list[int]
) -> None:
    given = torch.tensor(positions, dtype=torch.int64)
    result = torch.empty_like(given)
    ops.rope_rows(given, torch.tensor(slots, dtype=torch.int64), OFFSETS, 16, result)
    assert result.tolist() == rows
    assert given.tolist() == positions


def test_the_kernel_equals_its_reference_in_the_interpreter() -> None:
    assert output_of("interpret_rope_rows.py", TRITON_INTERPRET="1").split() == ["1", "63", "256", "257", "1000"]
