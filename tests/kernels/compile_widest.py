"""Compile attention for the heads that take most room, and print how much shared memory its programs take, as JSON.

All heads of the largest group share a KV head. Of each size of tiles these are the widest heads, and float32 takes what
narrower types of as many bytes take, and more for the parts that its products are made of.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

import torch

from posenc_runtime.encodings.distance import Linear
from tests.kernels.compile_attention import HEADS, at_read_time, biased, contextual, launches_of

WIDEST = (64, 128, 256)


def shared_bytes() -> Iterator[tuple[str, int]]:
    for head_dim in WIDEST:
        of_bias = launches_of(functools.partial(biased, Linear(HEADS), 1, head_dim, window=True, dtype=torch.float32))
        of_cope = launches_of(functools.partial(contextual, 64, 1, head_dim, torch.float32))
        for name in ("prefill", "decode"):
            yield f"{name}, heads of {head_dim}", of_bias[name].shared_bytes()
        for name in ("cope-prefill", "cope-scores", "cope-values"):
            yield f"{name}, heads of {head_dim}", of_cope[name].shared_bytes()
        of_turns = launches_of(functools.partial(at_read_time, 1, head_dim, torch.float32, leak=8))
        for name in ("read-time-decode", "read-time-prefill"):
            yield f"{name}, heads of {head_dim}", of_turns[name].shared_bytes()


if __name__ == "__main__":
    print(json.dumps(dict(shared_bytes())))
