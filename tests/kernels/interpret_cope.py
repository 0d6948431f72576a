"""Run every case through the Triton kernels of CoPE, in the interpreter, and print what is wrong with each, as JSON.

Tiles and chunks are small here, so that short requests have many.
"""

from __future__ import annotations

import json

from posenc_runtime.kernels import chunks, cope_prefill
from posenc_runtime.kernels.cope_attention import cope_attention
from tests.kernels import interpreted_bfloat16
from tests.kernels.attention_cases import COPE_CASES, Case


def main() -> None:
    interpreted_bfloat16.mend()
    chunks.TILE, chunks.MIN_CHUNK, chunks.MAX_CHUNKS = 16, 32, 4
    cope_prefill.ROWS, cope_prefill.GATED_TILE, cope_prefill.TILE = 32, 8, 16
    cope_prefill.PROGRAMS = 3
    print(json.dumps({name: faults(case) for name, case in COPE_CASES.items()}))


def faults(case: Case) -> list[str]:
    tensors = case.tensors()
    cope_attention(
        tensors.query,
        tensors.key_cache,
        tensors.value_cache,
        case.batch(),
        case.cope(),
        case.scale(),
        tensors.out,
    )
    return tensors.faults()


if __name__ == "__main__":
    main()
