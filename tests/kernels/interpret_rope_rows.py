"""Compare the Triton kernel with its reference in the interpreter, and print the sizes that were compared."""

from __future__ import annotations

import torch

from posenc_runtime.kernels.rotary import reference, rope_rows


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    for num_tokens in (1, 63, 256, 257, 1000):
        positions = torch.randint(0, 4096, (num_tokens,), generator=generator)
        slots = torch.randint(-1, 40 * 16, (num_tokens + num_tokens % 3 - 1,), generator=generator)
        offsets = torch.randint(0, 3, (40,), generator=generator) * 512
        found, expected = torch.empty_like(positions), torch.empty_like(positions)
        reference.rope_rows(positions, slots, offsets, 16, expected)
        rope_rows.rope_rows(positions, slots, offsets, 16, found)
        assert torch.equal(found, expected), num_tokens
        print(num_tokens)


if __name__ == "__main__":
    main()
