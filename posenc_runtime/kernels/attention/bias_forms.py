"""Triton: the forms of a distance bias (``encodings.distance``), and the reach of each form."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from posenc_runtime.encodings.distance import FURTHEST, BiasForm, Flat, Linear, Log, Power

_FURTHEST = tl.constexpr(FURTHEST)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_form(p_slope, p_shape, o_head, FORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the slope of each head, and its exponent or rate; zeros for what the form does not have."""
    b_slope = tl.zeros(o_head.shape, tl.float32)
    b_shape = tl.zeros(o_head.shape, tl.float32)
    if FORM == "linear" or FORM == "power" or FORM == "log":
        b_slope = tl.load(p_slope + o_head)
    if FORM == "power" or FORM == "log":
        b_shape = tl.load(p_shape + o_head)
    return b_slope, b_shape


@triton.jit
def biased(  # type: ignore[no-untyped-def]
    b_scores, b_distance, b_slope, b_shape, p_table, o_head, FORM: tl.constexpr, TABLE_LENGTH: tl.constexpr
):
    """Scores plus the bias, both in base 2.

    Args:
        b_scores: float32 ``[BM, BN]``.
        b_distance: int32 ``[BM, BN]``. Results at distances below 0 are undefined; the caller masks them.
        b_slope, b_shape: from ``load_form``, for each row's head ``[BM]``.
        p_table: float32 ``[num_heads, TABLE_LENGTH]``, in base e.
        o_head: the head of each row ``[BM]``.
    """
    if FORM == "flat":
        return b_scores
    if FORM == "table":
        b_distance = tl.minimum(tl.maximum(b_distance, 0), TABLE_LENGTH - 1)
        return b_scores + tl.load(p_table + o_head[:, None] * TABLE_LENGTH + b_distance) * _LOG2_E
    b_slope = (b_slope * -_LOG2_E)[:, None]
    b_distance = b_distance.to(tl.float32)
    if FORM == "linear":
        return b_scores + b_slope * b_distance
    b_distance = tl.maximum(b_distance, 0.0)
    if FORM == "power":
        return b_scores + b_slope * tl.exp2(b_shape[:, None] * tl.log2(b_distance))
    # For a small x, u = 1 + x loses digits of x. log(u) * x / (u - 1) is log(1 + x) without this loss.
    b_small = b_shape[:, None] * b_distance
    b_sum = 1.0 + b_small
    b_log = tl.where(b_sum == 1.0, b_small, tl.log(b_sum) * (b_small / (b_sum - 1.0)))
    return b_scores + b_slope * b_log


@triton.jit
def reach(b_drop, b_slope, b_shape, FORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """See ``encodings.distance.Flat.reach``: the largest distance at which the bias is above ``-drop``.

    Float32 ``[BM]``. The rounding error is far smaller than what ``window.ROUNDING`` adds to the drop.
    """
    b_ratio = tl.maximum(b_drop, 0.0) / b_slope
    if FORM == "linear":
        b_reach = b_ratio
    elif FORM == "power":
        b_reach = tl.exp2(tl.log2(b_ratio) / b_shape)
    else:
        # Below a quarter, exp(x) - 1 loses digits, and the series does not.
        b_series = b_ratio * (1 + b_ratio / 2 * (1 + b_ratio / 3 * (1 + b_ratio / 4 * (1 + b_ratio / 5))))
        b_exact = tl.exp(tl.minimum(b_ratio, 64.0)) - 1.0
        b_reach = tl.where(b_ratio < 0.25, b_series, b_exact) / b_shape
    return tl.where(b_drop > 0, tl.minimum(b_reach, _FURTHEST), -1.0)


def form_arguments(form: BiasForm, num_heads: int, device: torch.device) -> dict[str, Any]:
    """The arguments that tell a kernel the kind of a form, and the tensors of its numbers.

    Raises:
        ValueError: when the form has another number of heads, is on another device, or is not contiguous float32.
    """
    arguments: dict[str, Any] = {"p_slope": None, "p_shape": None, "p_table": None, "TABLE_LENGTH": 1}
    match form:
        case Flat():
            return arguments | {"FORM": "flat"}
        case Linear():
            arguments |= {"FORM": "linear", "p_slope": form.slope}
        case Power():
            arguments |= {"FORM": "power", "p_slope": form.slope, "p_shape": form.exponent}
        case Log():
            arguments |= {"FORM": "log", "p_slope": form.slope, "p_shape": form.rate}
        case _:
            arguments |= {"FORM": "table", "p_table": form.values, "TABLE_LENGTH": form.values.shape[1]}
    for numbers in arguments.values():
        if isinstance(numbers, torch.Tensor):
            if numbers.shape[0] != num_heads or numbers.device != device:
                raise ValueError(
                    f"the bias must have {num_heads} heads on {device}, got {numbers.shape[0]} on {numbers.device}"
                )
            if numbers.dtype != torch.float32 or not numbers.is_contiguous():
                raise ValueError(
                    f"a bias's numbers must be contiguous float32, got {numbers.dtype} and strides {numbers.stride()}"
                )
    return arguments
