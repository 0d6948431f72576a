"""vLLM's rotary embedding with a stacked table: the scale of a token's block chooses the token's row. Decision 1.

A subclass replaces vLLM's class, by ``CustomOp.register_oot``. Only the row index differs from stock: the parent's own
table serves scale 1 and the parent's own kernel rotates, so the output of an unscaled request is that of stock vLLM to
the bit. Where attention rotates, the embedding returns queries and keys as they are, and has no table. Decision 2.

An embedding that the deployment does not scale, such as that of layers with a sliding window, stays vLLM's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.rotary_embedding.linear_scaling_rope import LinearScalingRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.encodings.table import fill_cos_sin
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.rotary import building
from posenc_runtime.vllm_adapter.in_worker.rotary.own_rotation import own_rotation, own_table, table_as_long
from posenc_runtime.vllm_adapter.in_worker.rotary.rows import make_room_for_rows
from posenc_runtime.vllm_adapter.in_worker.worker_state import Rotary


def scaling(rotary_class: Any) -> Any:
    """A subclass of a rotary class of vLLM. It has the stacked table if the engine's deployment scales it."""
    num_axes = 3 if issubclass(rotary_class, MRotaryEmbedding) else 1

    def _compute_cos_sin_cache(self: Any) -> Tensor:
        deployment = building.checked_deployment()
        if deployment is not None and deployment.turns_queries:
            self.posenc_own = own_rotation(rotary_class, self)
            return _long_table(rotary_class, self, self.posenc_own, deployment)
        own = own_rotation(rotary_class, self) if deployment is not None and deployment.rotates else None
        made = None
        if deployment is not None and own is not None:
            made = building.enter(deployment, self, own, is_neox_style=self.is_neox_style)
        if made is None:
            if deployment is not None and (num_rows := building.rows_of_others(deployment, self)):
                return table_as_long(rotary_class, self, num_rows)
            stock: Tensor = rotary_class._compute_cos_sin_cache(self)
            return stock
        self.posenc_scaled = True
        self.posenc_fused = made.is_fused
        # Qwen3-Next rotates in a kernel of its own, past this class, where the table has a data type that it takes.
        self.dtype = None
        if made.is_fused:  # a table without rows, so that code which reads it anyway fails
            return torch.empty(0, self.rotary_dim)
        make_room_for_rows(self, num_axes=num_axes)
        keep_query_factors(self, made)
        unscaled = own_table(rotary_class, self, made.lengths[0])
        return stacked_table(made, unscaled)

    members: dict[str, Any] = {
        "posenc_scaled": False,
        "posenc_fused": False,
        "posenc_own": None,
        "posenc_multiplies": False,
        "_compute_cos_sin_cache": _compute_cos_sin_cache,
        "forward": by_scale(rotary_class.forward),
    }
    if num_axes > 1:
        members["__init__"] = _keeping_positions_factor(rotary_class)
    elif issubclass(rotary_class, LinearScalingRotaryEmbedding):
        members["__init__"] = _taking_a_whole_factor(rotary_class)
    return type("Posenc" + rotary_class.__name__, (rotary_class,), members)


def _keeping_positions_factor(rotary_class: Any) -> Any:
    def __init__(self: Any, head_size: int, rotary_dim: int, max_position: int, *others: Any, **named: Any) -> None:
        # vLLM's table has so many times the served length, because the positions of a video may exceed its tokens.
        self.posenc_positions_factor = named.get("positions_factor", 4)
        rotary_class.__init__(self, head_size, rotary_dim, max_position, *others, **named)

    return __init__


def _taking_a_whole_factor(rotary_class: Any) -> Any:
    def __init__(
        self: Any,
        head_size: int,
        rotary_dim: int,
        max_position_embeddings: int,
        base: float,
        is_neox_style: bool,
        scaling_factors: float | list[float],
        dtype: torch.dtype,
    ) -> None:
        # vLLM's class takes a whole number, as many configurations have it, for a list of factors.
        factors = float(scaling_factors) if isinstance(scaling_factors, int) else scaling_factors
        rotary_class.__init__(self, head_size, rotary_dim, max_position_embeddings, base, is_neox_style, factors, dtype)

    return __init__


def stacked_table(made: Rotary, unscaled: Tensor) -> Tensor:
    """The tables of all scales, one below the other. Decision 4.

    Args:
        unscaled: ``[num_rows, rotary_dim]``, the checkpoint's own table. It may end before the first scale's length,
            where a deployment with scale 1 alone serves past what the checkpoint's own method was tuned for.

    Returns:
        ``[sum(made.lengths), rotary_dim]``, in the data type of ``unscaled``.
    """
    table = unscaled.new_empty(sum(made.lengths), unscaled.shape[1])
    for index, part in enumerate(torch.split(table, list(made.lengths))):
        if index > 0 or len(unscaled) < len(part):
            fill_cos_sin(part, made.table_frequencies(index))
        if index == 0:
            num_own = min(len(unscaled), len(part))
            part.narrow(0, 0, num_own).copy_(unscaled.narrow(0, 0, num_own))
    return table


def _long_table(rotary_class: Any, module: Any, own: Frequencies | None, deployment: Deployment) -> Tensor:
    """vLLM's own table up to the trained length, and rows from there to the longest request.

    vLLM takes the product of a position and a frequency in float32, which is off by up to 0.03 rad at a million tokens.
    The rows past the trained length, which no stock deployment of the checkpoint has, are from float64.

    Args:
        own: the rotation of the table; None where it is not made of one frequency for each pair. Then all rows are
            vLLM's.

    Raises:
        Unsupported: when vLLM's table ends before the longest request, and ``own`` is None.
    """
    longest, trained = deployment.max_model_len, deployment.original_max_position_embeddings
    if own is None:
        table = own_table(rotary_class, module, longest)
        if len(table) < longest:
            raise Unsupported(
                f"the rotary embedding must have a position for each of {longest} tokens, but it ends after "
                f"{len(table)}: set max_model_len to that"
            )
        return table[:longest].clone()
    table = own_table(rotary_class, module, min(trained, longest))
    longer = table.new_empty(longest, table.shape[1])
    fill_cos_sin(longer, own)
    num_own = min(len(table), trained, longest)
    longer.narrow(0, 0, num_own).copy_(table.narrow(0, 0, num_own))
    return longer


def by_scale(parent: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` of vLLM, called with each token's row in the stacked table, or skipped if attention rotates."""

    def forward(
        self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None, *others: Any, **named: Any
    ) -> Any:
        if self.posenc_fused:
            return query, key
        if self.posenc_scaled:
            torch.ops.vllm.posenc_rope_rows(positions, self.posenc_rows)
            if self.posenc_rows.dim() == 1:
                positions = self.posenc_rows[: positions.numel()]
            elif positions.dim() == 1:  # M-RoPE takes text with one position for each token, too
                positions = self.posenc_rows[0, : positions.shape[0]]
            else:
                positions = self.posenc_rows[:, : positions.shape[1]]
        turned = parent(self, positions, query, key, *others, **named)
        if not self.posenc_multiplies:
            return turned
        return multiplied(self, turned[0], positions), turned[1]

    return forward


def keep_query_factors(module: Any, made: Rotary) -> None:
    """Give a rotary embedding what queries are multiplied by, for each row of the stacked table, if it is not 1.

    The buffer ``posenc_query_factors`` is float32 ``[sum(made.lengths)]``.
    """
    if set(made.query_factors) == {1.0}:
        return
    factors = torch.tensor(made.query_factors, dtype=torch.float32)
    module.posenc_multiplies = True
    module.register_buffer(
        "posenc_query_factors", factors.repeat_interleave(torch.tensor(made.lengths)), persistent=False
    )


def multiplied(module: Any, query: Tensor, rows: Tensor) -> Tensor:
    """Queries with the square of the attention factor that keys do not carry, in place, in what is rotated of them.

    Args:
        query: ``[num_tokens, num_heads * head_size]`` or ``[num_tokens, num_heads, head_size]``.
        rows: int64 ``[num_tokens]`` or ``[num_axes, num_tokens]``; on all axes a token has rows of the same scale.
    """
    factors = module.posenc_query_factors[rows if rows.dim() == 1 else rows[0]]
    heads = query.view(len(factors), -1, module.head_size)
    heads[..., : module.rotary_dim].mul_(factors[:, None, None])
    return query
