"""The custom op that finds each token's row in the stacked table. ``torch.compile`` does not trace it. Decision 3."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_runtime.kernels import ops
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE


def register() -> None:
    """Register the op as ``torch.ops.vllm.posenc_rope_rows``."""
    from vllm.utils.torch_utils import direct_register_custom_op

    direct_register_custom_op(
        op_name="posenc_rope_rows",
        op_func=_rope_rows,
        mutates_args=["rows"],
        fake_impl=_rope_rows_fake,
        dispatch_key="CompositeExplicitAutograd",  # for every device
    )


def make_room_for_rows(module: torch.nn.Module, *, num_axes: int = 1) -> None:
    """Give a rotary embedding a buffer with one row index for each token of a step. CUDA graphs hold its address.

    Args:
        num_axes: row indices of a token: M-RoPE has three positions for each token, one for each axis.
    """
    from vllm.config.vllm import get_current_vllm_config

    room = get_current_vllm_config().scheduler_config.max_num_batched_tokens
    shape = (room,) if num_axes == 1 else (num_axes, room)
    module.register_buffer("posenc_rows", torch.zeros(shape, dtype=torch.int64), persistent=False)


def _rope_rows(positions: Tensor, rows: Tensor) -> None:
    """Write each token's row index. The op finds the slot mapping of the forward pass when it runs or is captured.

    All layers of a forward pass have the same positions and slots, so their rows are looked up once. A captured CUDA
    graph contains a look-up of its own. Decision 3.

    Args:
        positions: int64 ``[num_tokens]`` or ``[num_axes, num_tokens]``.
        rows: int64 ``[at least num_tokens]`` or ``[num_axes, at least num_tokens]``; those of ``num_tokens`` are
            written.
    """
    from vllm.forward_context import get_forward_context, is_forward_context_available

    positions = positions if rows.dim() == 2 else positions.flatten()
    num_tokens = positions.shape[-1]
    out = (rows if positions.dim() == rows.dim() else rows[0])[..., :num_tokens]
    if STATE.asked_rows is not None:
        out.copy_(STATE.asked_rows)
        return
    if STATE.block_row_offset is None or not is_forward_context_available():
        out.copy_(positions)  # the profile run, before there is a KV cache
        return
    context = get_forward_context()
    if not context.slot_mapping:
        out.copy_(positions)  # a dummy run, which caches nothing
        return
    layer = next((name for name in context.slot_mapping if name in STATE.block_size), None)
    if layer is None:
        raise RuntimeError(
            "a forward pass must have slots for a layer with a registered KV cache, because a token's scale is that of "
            f"its block, got slots for {sorted(context.slot_mapping)}, registered are {sorted(STATE.block_size)}"
        )
    looked_up = positions.data_ptr(), num_tokens, _is_capturing(positions)
    known = context.additional_kwargs.setdefault("posenc_rows", {})
    # Keeping the positions keeps their memory, so that no other tensor can get the address that is compared.
    if known.get(rows.data_ptr(), (None,))[0] != looked_up:
        slots, offsets, block_size = context.slot_mapping[layer], STATE.block_row_offset, STATE.block_size[layer]
        for of_axis, out_of_axis in zip(_axes(positions), _axes(out), strict=True):
            ops.rope_rows(of_axis, slots, offsets, block_size, out_of_axis)
        known[rows.data_ptr()] = looked_up, positions


def _axes(of_tokens: Tensor) -> tuple[Tensor, ...]:
    return of_tokens.unbind() if of_tokens.dim() == 2 else (of_tokens,)


def _is_capturing(positions: Tensor) -> bool:
    """Whether a CUDA graph is being captured. A look-up from before the capture would not be in the graph."""
    return positions.is_cuda and torch.cuda.is_current_stream_capturing()


def _rope_rows_fake(positions: Tensor, rows: Tensor) -> None:
    pass
