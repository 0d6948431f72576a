"""Measures how fast a worker turns keys and reads its weights: once, when its caches are allocated.

Both times are the shortest of a few repetitions, because other work of the machine can only make them longer.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import torch

from posenc_runtime.kv.budget import Speed
from posenc_runtime.kv.crossing import Rotation
from posenc_runtime.kv.moves import BlockMove, Moves
from posenc_runtime.vllm_adapter.in_worker.rerotation import Rerotation

_REPETITIONS = 3
# More than a processor's caches hold, and enough that the time of a launch does not matter.
_TURNED_BYTES = {"cuda": 4 * 2**30, "cpu": 32 * 2**20}
_READ_BYTES = {"cuda": 2 * 2**30, "cpu": 128 * 2**20}


def measure(rerotation: Rerotation, num_weight_bytes: int, num_blocks: int) -> Speed:
    """Turn some blocks before any request has filled them, and read some memory.

    These blocks hold zeros, and turned zeros are zeros. They are turned into other blocks, which takes longer than to
    turn them in place. The KV cache groups are measured one after another, and the slowest counts.

    Args:
        num_blocks: blocks of each KV cache group, vLLM's null block among them.
    """
    return Speed(
        token_seconds=max(_token_seconds(rerotation, group, num_blocks) for group in rerotation.groups),
        weights_seconds=num_weight_bytes * _byte_seconds(rerotation),
        weight_bytes=num_weight_bytes,
        block_tokens=max(rerotation.block_tokens(group) for group in rerotation.groups),
    )


def _token_seconds(rerotation: Rerotation, group: int, num_blocks: int) -> float:
    """Seconds to turn one token, in a part of a long crossing, with the time to receive the moves."""
    enough = -(-_TURNED_BYTES[rerotation.device.type] // rerotation.block_bytes(group))
    count = min(enough, (num_blocks - 1) // 2)
    block_tokens = rerotation.block_tokens(group)
    moves = [
        BlockMove(group, source, source + count, first_position=source * block_tokens, num_tokens=block_tokens)
        for source in range(1, count + 1)
    ]
    if not moves:  # a pool of one block, or two: vLLM's null block, which nobody reads
        moves = [BlockMove(group, 0, 0, first_position=0, num_tokens=block_tokens)]
    rotation = Rotation(from_index=0, to_index=1, moves=Moves.of(moves))
    seconds = _least_seconds(lambda: rerotation.apply(pickle.loads(pickle.dumps(rotation))), rerotation.device)
    return seconds / (len(moves) * block_tokens)


def _byte_seconds(rerotation: Rerotation) -> float:
    """Seconds to read one byte of memory at full speed: the device takes the maximum of 32-bit integers.

    A library may have packed the weights elsewhere, so other memory is read. On a GPU that is the KV caches, because
    no other memory is free. On the CPU it is a new tensor, because the pages of a cache exist only once written.
    """
    most, parts = _READ_BYTES[rerotation.device.type], list[torch.Tensor]()
    if rerotation.device.type == "cuda":
        for memory in rerotation.memory():
            parts.append(memory[: max(most - sum(part.nbytes for part in parts), 0) // 4 * 4].view(torch.int32))
    else:
        parts.append(torch.ones(most // 4, dtype=torch.int32))
    parts = [part for part in parts if part.numel()]
    seconds = _least_seconds(lambda: [part.amax() for part in parts], rerotation.device)
    return seconds / sum(part.nbytes for part in parts)


def _least_seconds(action: Callable[[], object], device: torch.device) -> float:
    """The shortest time from calling ``action`` until the device has finished it."""
    seconds = []
    for _ in range(_REPETITIONS):
        _wait_for(device)
        began = time.perf_counter()
        action()
        _wait_for(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
