"""Whether what is timed computes what it should."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.tolerance import BFLOAT16_LAST_BIT, KEY_TURNED_BY_KERNEL, ROTATED_BY_BFLOAT16_TABLE


class Wrong(RuntimeError):
    """Something else is computed, so that its time would mean nothing."""


def rotated_alike(found: Tensor, expected: Tensor) -> None:
    """Refuse numbers that are not the expected ones but for the rounding of their data type, bfloat16.

    Raises:
        Wrong: a NaN where none is expected included.
    """
    longest = 2**0.5 * expected.abs().max().float()  # of a pair: what cancels is rounded like what it was made of
    allowed = BFLOAT16_LAST_BIT * expected.abs().float() + KEY_TURNED_BY_KERNEL * longest
    worst = float(((found.float() - expected.float()).abs() / allowed).max())
    if not worst <= 1:
        raise Wrong(f"a rotated number is wrong by {worst:.2g} times what is allowed")


def rotated_nearly(found: Tensor, expected: Tensor) -> None:
    """The same for numbers that were rotated by a table in bfloat16, and rounded on the way: as a whole.

    Raises:
        Wrong: likewise.
    """
    error = float((found.float() - expected.float()).norm() / expected.float().norm())
    if not error <= ROTATED_BY_BFLOAT16_TABLE:
        raise Wrong(f"rotated numbers are wrong by {error:.1e} of their norm, {ROTATED_BY_BFLOAT16_TABLE:.1e} allowed")


def same_bits(found: Tensor, expected: Tensor) -> None:
    """Refuse what is not a copy.

    Raises:
        Wrong: naming how many elements are not.
    """
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
    differ = int((found.view(integer) != expected.view(integer)).sum())
    if differ:
        raise Wrong(f"{differ} of {found.numel()} copied elements are not the same")


def all_written(found: Tensor) -> None:
    """Refuse outputs ``[num_tokens, num_heads, head_dim]`` of which some are still what they were before, a NaN.

    Raises:
        Wrong: naming how many rows have one.
    """
    missing = int((~found.isfinite()).any(-1).any(-1).sum())
    if missing:
        raise Wrong(f"{missing} of {len(found)} outputs were not written, or are not finite")


def attended_alike(found: Tensor, expected: Tensor, allowed: float) -> None:
    """Refuse outputs ``[num_tokens, num_heads, head_dim]`` of which one row is not as expected.

    Args:
        allowed: error of a row, in parts of its norm.

    Raises:
        Wrong: a NaN included.
    """
    errors = (found.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1)
    worst = float(errors.max())
    if not worst <= allowed:
        raise Wrong(f"an output is wrong by {worst:.1e} of its norm, {allowed:.1e} is allowed")
