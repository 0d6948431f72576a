"""How fast a worker turns keys, and how fast it reads its weights: measured once, when its caches are there.

Both are the least of a few repetitions, because what else a machine does only adds to them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import torch

from posenc_runtime.kv.budget import Speed
from posenc_runtime.kv.crossing import Rotation
from posenc_runtime.kv.moves import BlockMove, Moves
from posenc_runtime.vllm_adapter.worker.rerotation import Rerotation

_REPETITIONS = 3
# More than the caches of a processor hold, and so much that launches do not count.
_TURNED_BYTES = {"cuda": 4 * 2**30, "cpu": 32 * 2**20}
_READ_BYTES = {"cuda": 2 * 2**30, "cpu": 128 * 2**20}


def measure(rerotation: Rerotation, num_weight_bytes: int, num_blocks: int) -> Speed:
    """Turn some blocks that nobody has filled, and read some memory.

    Such blocks hold zeros, and zeros that are turned are zeros. They are copied into other blocks, which takes longer
    than to turn them in place. Groups of layers that have blocks of their own are turned one after another, and the
    slowest counts.

    Args:
        num_blocks: of each KV cache group, vLLM's null block among them.
    """
    return Speed(
        token_seconds=max(_token_seconds(rerotation, group, num_blocks) for group in rerotation.groups),
        weights_seconds=num_weight_bytes * _byte_seconds(rerotation),
        weight_bytes=num_weight_bytes,
        block_tokens=max(rerotation.block_tokens(group) for group in rerotation.groups),
    )


def _token_seconds(rerotation: Rerotation, group: int, num_blocks: int) -> float:
    """Of a part of a long crossing, with all that a worker has to do for it: to receive the moves, too."""
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
    """To read a byte of memory, as fast as a device does: as whole numbers of 32 bits, of which it keeps the largest.

    Weights may lie where a library has packed them, so other memory is read. A GPU has none to spare but its KV caches;
    on the CPU those are memory only when somebody has written to them.
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
    """Until the device has done it."""
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
