"""Record norms with the Triton kernels in the interpreter, and print those that differ from a plain loop, as JSON."""

from __future__ import annotations

import json

import torch

from posenc_runtime.kernels.attention.key_norms import record_key_norms
from posenc_runtime.kernels.attention.window import zero_norms
from tests.tolerance import SOME_FLOAT32_OPERATIONS

NUM_BLOCKS, HEAD_DIM = 5, 24

# Slots of tokens in the order of launches; -1 is not cached. Blocks are begun, gone on with, filled and begun anew.
LAUNCHES = {
    "a-prompt-over-blocks": (16, 2, ([32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 16, 17, 18],)),
    "token-by-token": (16, 2, ([16], [17], [18], [19])),
    "requests-side-by-side": (16, 3, ([0, 1, 35, 64, 65, 66], [2, 36, 67])),
    "tokens-that-are-not-cached": (16, 2, ([-1, 3, -1, 4, 5, -1], [-1])),
    "a-block-with-another-between": (16, 2, ([20, 40, 21, 41, 22],)),
    "a-block-used-again": (16, 2, (list(range(48, 64)), [48, 49], [50, 51, 52])),
    "blocks-of-20": (20, 1, ([20, 21, 38, 39, 40], [41])),
    "thirty-three-heads-and-blocks-of-128": (128, 33, ([127, 128, 129],)),
    "no-token": (16, 2, ([],)),
}


def main() -> None:
    print(json.dumps({name: faults(*launches) for name, launches in LAUNCHES.items()}))


def faults(block_size: int, num_heads: int, launches: tuple[list[int], ...]) -> list[str]:
    """What differs, of the slots up to the last that each block's launches have written."""
    generator = torch.Generator().manual_seed(2)
    norms = zero_norms((NUM_BLOCKS, num_heads, block_size), torch.device("cpu"))
    held = torch.zeros(NUM_BLOCKS, block_size, num_heads, dtype=torch.float64)
    last = dict.fromkeys(range(NUM_BLOCKS), -1)
    for slots in launches:
        keys = torch.randn(len(slots) + 2, num_heads, HEAD_DIM, generator=generator)
        record_key_norms(norms, keys, torch.tensor(slots, dtype=torch.int64))
        for slot, key in zip(slots, keys.double(), strict=False):
            if slot >= 0:
                block, place = divmod(slot, block_size)
                held[block, place], last[block] = key.norm(dim=-1), place
    return [
        f"slot {place} of block {block} holds {norms[block, :, place].tolist()}"
        for block, end in last.items()
        for place in range(end + 1)
        if not torch.allclose(
            norms[block, :, place].double(), held[block, : place + 1].amax(0), rtol=SOME_FLOAT32_OPERATIONS, atol=0
        )
    ]


if __name__ == "__main__":
    main()
