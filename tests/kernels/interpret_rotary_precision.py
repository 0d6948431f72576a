"""Logits of queries and keys, as the kernel rotates them and as float32 tables of float32 angles do, against float64.

Prints as JSON, of each data type and first position, the root mean square errors of the kernel and of tables.
"""

from __future__ import annotations

import json
import math

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kernels import rotary_store
from posenc_runtime.kernels.rotary_scales import RotaryScales
from tests.kernels import interpreted_bfloat16

NUM_TOKENS, HEAD_DIM, BLOCK_SIZE = 32, 128, 16
MEASURED = (
    (torch.bfloat16, 4_000),
    (torch.bfloat16, 131_000),
    (torch.bfloat16, 1_048_000),
    (torch.float16, 1_048_000),
    (torch.float32, 1_048_000),
)


def main() -> None:
    interpreted_bfloat16.mend()
    rotary_store._PROGRAMS = 1  # the fewest, for the interpreter runs one after the other
    print(json.dumps({f"{dtype} from {first}": errors(dtype, first) for dtype, first in MEASURED}))


def errors(dtype: torch.dtype, first_position: int) -> list[float]:
    """Of logits between all queries and keys of consecutive tokens."""
    generator = torch.Generator().manual_seed(17)
    query, key = torch.randn(2, NUM_TOKENS, 1, HEAD_DIM, generator=generator).to(dtype)
    inv_freq = 500_000 ** (torch.arange(HEAD_DIM // 2, dtype=torch.float64) * -2 / HEAD_DIM)
    position = torch.arange(first_position, first_position + NUM_TOKENS)
    angle = position[:, None].double() * inv_freq.float().double()
    exact = logits(*(rotated(heads[:, 0].double(), angle.cos(), angle.sin()) for heads in (query, key)))

    in_float32 = position[:, None].float() * inv_freq.float()
    tables = (rotated(heads[:, 0].float(), in_float32.cos(), in_float32.sin()) for heads in (query, key))
    by_tables = logits(*(heads.to(dtype) for heads in tables))

    cache = torch.zeros(NUM_TOKENS // BLOCK_SIZE, 1, BLOCK_SIZE, 2 * HEAD_DIM, dtype=dtype)
    scales = RotaryScales.of([Frequencies(inv_freq)], torch.zeros(len(cache), dtype=torch.int32), BLOCK_SIZE, True)
    rotary_store.rotary_store(query, key, key, cache, position, torch.arange(NUM_TOKENS), scales)
    by_kernel = logits(query[:, 0], cache[:, 0, :, :HEAD_DIM].flatten(0, 1))
    return [(found - exact).square().mean().sqrt().item() for found in (by_kernel, by_tables)]


def rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def logits(query: Tensor, key: Tensor) -> Tensor:
    """float64 ``[num_tokens, num_tokens]``."""
    return query.double() @ key.double().T / math.sqrt(HEAD_DIM)


if __name__ == "__main__":
    main()
