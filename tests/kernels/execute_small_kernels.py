"""Run kernels whose results are known by the machine for PTX, and others with a fault in them; print both, as JSON.

Products are those of our kernels' tiles: on tensor cores of two generations, from registers and from shared memory.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from tests.kernels.ptx.driver import Launch, launches_go_to
from tests.kernels.ptx.machine import Conditions, Machine

AMPERE, HOPPER = 80, 90
TILES = ((64, 64, 64), (16, 64, 32), (128, 32, 32), (64, 16, 64))
SIZE = 128


@triton.jit
def _product(
    p_a,
    p_b,
    p_out,
    stride_row,
    stride_column,
    SIZE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # type: ignore[no-untyped-def]
    o_row, o_column = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    b_sum = tl.zeros((BM, BN), tl.float32)
    for first in range(0, SIZE, BK):
        o_inner = first + tl.arange(0, BK)
        b_a = tl.load(p_a + o_row[:, None] * SIZE + o_inner[None, :])
        b_b = tl.load(p_b + o_inner[:, None] * stride_row + o_column[None, :] * stride_column)
        b_sum = tl.dot(b_a, b_b, b_sum, input_precision=PRECISION)
    tl.store(p_out + o_row[:, None] * SIZE + o_column[None, :], b_sum)


@triton.jit
def _softmax(p_in, p_out, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    o_column = tl.arange(0, BLOCK)
    b_in = tl.load(p_in + tl.program_id(0) * size + o_column, o_column < size, -float("inf"))
    b_weights = tl.exp(b_in - tl.max(b_in, 0))
    tl.store(p_out + tl.program_id(0) * size + o_column, b_weights / tl.sum(b_weights, 0), o_column < size)


@triton.jit
def _running_sum(p_in, p_out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(p_out + tl.arange(0, BLOCK), tl.cumsum(tl.load(p_in + tl.arange(0, BLOCK)), 0))


@triton.jit
def _rounded(p_in, p_out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(p_out + tl.arange(0, BLOCK), tl.load(p_in + tl.arange(0, BLOCK)).to(tl.float8e4nv))


@triton.jit
def _counted(p_out):  # type: ignore[no-untyped-def]
    tl.atomic_add(p_out, 1)


@triton.jit
def _shifted(p_memory, by, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    o_entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_memory + o_entry + by, tl.load(p_memory + o_entry))


def main() -> None:
    torch.manual_seed(0)
    right = {f"sm_{of}": _errors(of) for of in (AMPERE, HOPPER)}
    print(json.dumps({"right": right, "faults": _planted()}))


def _errors(capability: int) -> dict[str, float]:
    """How far each result is from torch's, in units of what its arithmetic rounds."""
    found: dict[str, float] = {}
    machine = Machine()
    with launches_go_to(machine.execute, capability):
        for dtype, precision, allowed in (
            (torch.bfloat16, "tf32", 1e-4),
            (torch.float16, "tf32", 1e-4),
            (torch.float32, "tf32", 0.1),
            (torch.float32, "tf32x3", 1e-4),
        ):
            for tile in TILES:
                for is_transposed in (False, True):
                    error = _product_error(dtype, precision, tile, is_transposed)
                    found[f"{dtype} {precision} {tile} {is_transposed}"] = error / allowed
        given, out = torch.randn(5, 200), torch.zeros(5, 200)
        _softmax[(5,)](given, out, 200, BLOCK=256)
        found["softmax"] = _difference(out, given.softmax(1)) / 1e-6
        given, out = torch.randn(1024), torch.zeros(1024)
        _running_sum[(1,)](given, out, BLOCK=1024)
        found["running sum"] = _difference(out, given.cumsum(0)) / 1e-4
        count = torch.zeros(1, dtype=torch.int32)
        _counted[(7,)](count)
        found["count"] = _difference(count, torch.tensor([7]))
        if capability == HOPPER:
            given, rounded = torch.randn(512) * 100, torch.zeros(512, dtype=torch.float8_e4m3fn)
            _rounded[(1,)](given, rounded, BLOCK=512)
            found["float8"] = _difference(rounded, given.clamp(-448, 448).to(torch.float8_e4m3fn))
    return found | dict.fromkeys(machine.faults, 1e9)


def _product_error(dtype: torch.dtype, precision: str, tile: tuple[int, int, int], is_transposed: bool) -> float:
    a, b, out = torch.randn(SIZE, SIZE).to(dtype), torch.randn(SIZE, SIZE).to(dtype), torch.zeros(SIZE, SIZE)
    held = b.T.contiguous().T if is_transposed else b
    rows, columns, inner = tile
    _product[(SIZE // rows, SIZE // columns)](
        a, held, out, *held.stride(), SIZE=SIZE, BM=rows, BN=columns, BK=inner, PRECISION=precision
    )
    return _difference(out, a.double() @ b.double())


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).abs().max().nan_to_num(1e9))


def _planted() -> dict[str, list[str]]:
    """What the machine says of kernels with a fault."""
    return {
        "past the end": _said_of(lambda: _shifted[(2,)](torch.zeros(64), 32, BLOCK=32)),
        "into another's": _said_of(lambda: _shifted[(2,)](torch.zeros(96), 32, BLOCK=32)),
        "without barriers": _said_of(_one_product, "bar.sync"),
        "without waiting": _said_of(_one_product, "cp.async.wait_group"),
    }


def _one_product() -> None:
    if _product_error(torch.bfloat16, "tf32", TILES[0], False) > 1:
        raise RuntimeError("the product is wrong")


def _said_of(run: Callable[[], Any], removed: str | None = None) -> list[str]:
    machine = Machine(Conditions(seed=1))

    def execute(launch: Launch) -> None:
        lines = launch.ptx.splitlines()
        kept = "\n".join(line for line in lines if removed is None or not line.strip().startswith(removed))
        machine.execute(dataclasses.replace(launch, ptx=kept))

    try:
        with launches_go_to(execute, HOPPER):
            run()
    except RuntimeError as error:
        return [*machine.faults, str(error)]
    return machine.faults


if __name__ == "__main__":
    main()
