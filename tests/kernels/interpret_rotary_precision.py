"""How wrong logits are with the kernel that rotates into the cache, and with float32 tables.

Prints as JSON, of each data type and first position, the root mean square errors of the kernel and of tables.
"""

from __future__ import annotations

import json

import torch

from posenc_runtime.kernels.rotary import rotary_store
from tests.kernels import interpreted_bfloat16
from tests.kernels.rotary_precision import errors

NUM_TOKENS = 32
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
    found = {
        f"{dtype} from {first}": errors(rotary_store.rotary_store, dtype, first, NUM_TOKENS)
        for dtype, first in MEASURED
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
