"""Finds, before they are read, the keys to which a decaying bias gives too little weight to matter.

This is not a model's sliding window, which only vLLM's kernels have. ``window_plan.first_keys`` (Triton) and ``Needed``
(``cpu/bias.cpp``) compute the same bound.

The bound. Row i of head h has logits ``l_j = scale q_i.k_j + b(i - j)`` over its N keys j <= i. By Cauchy-Schwarz,
``l_j <= U_j := |scale| |q_i| K_j + b(i - j)`` for any K_j >= |k_j|. The row's largest logit is at least that of its own
key, ``m := scale q_i.k_i + b(0)``. A key with ``U_j < m - T`` weighs less than ``e^-T`` of the largest weight, so all
skipped keys together weigh less than ``N e^-T`` of the whole. With ``T = ln(N / tolerance)`` that is less than
``tolerance``. The weights of the other keys are normalised without the skipped ones, so the output moves by less than
``2 tolerance max|v|``.

If b does not increase with the distance, the largest U of a tile of keys follows from the tile's largest norm and the
bias of its newest key. A row has to read its last ``form.reach(|scale| |q_i| K - m' + T)`` keys. Here m' is the logit
of the row's own key without its bias, which is zero, and K is the largest norm of the request's keys.

K is the request's own. The largest norm of all keys that were ever cached would be simpler, but an answer would then
depend, within the tolerance, on the server's other requests. Decision 30.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import BiasForm
from posenc_runtime.kernels.attention.paged import PagedBatch

# Added to the bound: float32 logits of a few thousand, and so the bound, may be off by 1e-3.
ROUNDING = 0.01


@dataclasses.dataclass(frozen=True)
class Window:
    """The share of the weights that may be skipped, and the norms that decide which keys are.

    Attributes:
        key_norms: float32 ``[num_blocks, num_kv_heads, block_size]``. A slot has the largest norm of the block's keys
            up to this slot. So the last slot has the largest norm of a full block, whatever the block held before.
        tolerance: the share of the weights that may be skipped, in (0, 1).
        counts: int64 ``[2]``, to which kernels add the blocks that they read and the blocks that they skip. A block
            counts once for each KV head and each tile of queries.
        num_items: int32 ``[1]``, the number of chunks that a step's lone queries read; 0 between steps. The last kernel
            of a step sets it back to 0, which saves a launch at the beginning. So all steps of a window must run on one
            stream. Decision 31.

    Raises:
        ValueError: when the tolerance is out of range.
    """

    key_norms: Tensor
    tolerance: float
    counts: Tensor
    num_items: Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must be above 0 and below 1, got {self.tolerance}")
        num_items = torch.zeros(1, dtype=torch.int32, device=self.key_norms.device)
        object.__setattr__(self, "num_items", num_items)


def zero_norms(shape: Sequence[int], device: torch.device) -> Tensor:
    """Zeros for ``Window.key_norms``, in the memory layout that CUDA kernels read fastest.

    A kernel reads one slot of a block, the last one. In this layout the same slot of the next head is adjacent, so
    eight heads share the 32 bytes that one access to memory reads at least.
    """
    num_blocks, num_kv_heads, block_size = shape
    return torch.zeros(num_blocks, block_size, num_kv_heads, dtype=torch.float32, device=device).transpose(1, 2)


def record_key_norms(key_norms: Tensor, keys: Tensor, slot_mapping: Tensor) -> None:
    """Record the norms of keys that are being cached.

    Args:
        key_norms: see ``Window``; changed in place.
        keys: ``[at least num_slots, num_kv_heads, head_dim]``, as they are cached.
        slot_mapping: int64 ``[num_slots]``; -1 for a token that is not cached. The tokens of a block come in order.
    """
    block_size = key_norms.shape[2]
    slots = slot_mapping[slot_mapping >= 0]
    norms = keys[: slot_mapping.shape[0]][slot_mapping >= 0].float().norm(dim=-1)
    block_ids, offsets = slots // block_size, slots % block_size
    key_norms[block_ids, :, offsets] = norms
    # Earlier slots hold running maxima already. Later slots may hold norms of another request, but a running maximum
    # never depends on later slots.
    touched = torch.unique(block_ids)
    key_norms[touched] = key_norms[touched].cummax(dim=-1).values


def first_keys(
    query: Tensor, key_cache: Tensor, batch: PagedBatch, form: BiasForm, scale: float, window: Window
) -> Tensor:
    """The first key that each row has to read, by the bound above, with the largest norm of the row's keys as K.

    Args:
        query: ``[num_tokens, num_heads, head_dim]``.
        key_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``.

    Returns:
        int64 ``[num_tokens, num_heads]``. A kernel may read more keys, and always reads the row's own key.
    """
    num_heads, block_size = query.shape[1], key_cache.shape[2]
    group = num_heads // key_cache.shape[1]
    first = torch.zeros(query.shape[:2], dtype=torch.int64)
    for request in range(len(batch)):
        begin, end = (int(place) for place in batch.query_start_loc[request : request + 2])
        length = int(batch.seq_lens[request])
        positions = torch.arange(length - (end - begin), length)
        blocks = batch.block_table[request, : -(-length // block_size)].long()
        norms = window.key_norms[blocks].transpose(0, 1).flatten(1)[:, :length].cummax(-1).values
        own = key_cache[blocks[positions // block_size], :, positions % block_size].float()
        q = query[begin:end].float() * scale
        own_logit = (q * own.repeat_interleave(group, 1)).sum(-1)
        largest = q.norm(dim=-1) * norms[:, positions].T.repeat_interleave(group, 1)
        needed = torch.log((positions + 1.0) / window.tolerance) + ROUNDING
        reach = form.reach((largest - own_logit + needed[:, None]).T).T
        earliest = (positions[:, None] - reach.floor().long()).clamp(min=0)
        first[begin:end] = torch.minimum(earliest, positions[:, None])
    return first
