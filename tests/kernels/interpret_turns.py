"""Compare the kernel's cosine and sine with float64 in the interpreter, and print their largest errors."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from posenc_runtime.kernels.rotary.turns import cos_sin

_TILE = 4096


@triton.jit
def _cos_sin_kernel(p_turns, p_cos, p_sin, BT: tl.constexpr):  # type: ignore[no-untyped-def]
    o_turn = tl.program_id(0) * BT + tl.arange(0, BT)
    b_cos, b_sin = cos_sin(tl.load(p_turns + o_turn))
    tl.store(p_cos + o_turn, b_cos)
    tl.store(p_sin + o_turn, b_sin)


def main() -> None:
    turns = angles()
    cos, sin = torch.empty(turns.shape), torch.empty(turns.shape)
    _cos_sin_kernel[(turns.numel() // _TILE,)](turns, cos, sin, BT=_TILE)
    exact = turns.double() * (2 * math.pi / 2**64)
    print((cos.double() - exact.cos()).abs().max().item(), (sin.double() - exact.sin()).abs().max().item())


def angles() -> torch.Tensor:
    """int64: sixteenths of a turn and their neighbours, all magnitudes of both signs, and random ones.

    Half of the random ones lie near an odd eighth of a turn, where the polynomials reach furthest.
    """
    sixteenths = torch.arange(-8, 8) << 60
    near = torch.tensor([0, 1, -1, 2**31, -(2**31), 2**32, -(2**32), 2**40, -(2**40)])
    powers = 2 ** torch.arange(63)
    by_hand = torch.cat(((sixteenths[:, None] + near).flatten(), powers, -powers, powers - 1, -powers - 1))
    generator = torch.Generator().manual_seed(3)
    high, low = (torch.randint(-(2**31), 2**31, (64 * _TILE,), generator=generator) for _ in range(2))
    anywhere = (high << 32) + low
    odd_eighths = (2 * torch.arange(64 * _TILE) + 1) << 61
    return torch.cat((by_hand, anywhere[: 32 * _TILE], odd_eighths + (anywhere >> 6)))[: 64 * _TILE]


if __name__ == "__main__":
    main()
