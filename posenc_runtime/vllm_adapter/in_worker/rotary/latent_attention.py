"""Multi-head latent attention whose queries carry YaRN's mscale of their request's scale.

DeepSeek's YaRN also multiplies the softmax scale, by ``mscale ** 2``. vLLM does so once, when it builds the layer, with
the factor of scale 1. Queries of another scale are multiplied by the ratio of the two factors. Decision 68.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers import mla
from vllm.model_executor.layers.attention.mla_attention import MLAAttention

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.rotary import building
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE


class PosencMLAAttention(MLAAttention):
    """Differs from its parent only where scales have different factors."""

    posenc_factors: Tensor
    posenc_scaled = False

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        deployment = building.checked_deployment()
        if deployment is None or not deployment.scales_keys:
            return
        width = self.qk_nope_head_dim + self.qk_rope_head_dim
        factors = query_factors(deployment, self.scale * math.sqrt(width))
        if set(factors) != {1.0}:
            from vllm.config.vllm import get_current_vllm_config

            room = get_current_vllm_config().scheduler_config.max_num_batched_tokens
            self.posenc_scaled = True
            self.register_buffer("posenc_factors", torch.ones(room), persistent=False)
            STATE.query_factors = factors

    def forward(self, q: Tensor, *others: Any, **named: Any) -> Tensor:
        """As the parent's; ``q`` is ``[num_tokens, num_heads, head_dim]``."""
        if self.posenc_scaled:
            torch.ops.vllm.posenc_query_factors(q, self.posenc_factors)
            q = q * self.posenc_factors[: q.shape[0], None, None].to(q.dtype)
        attended: Tensor = super().forward(q, *others, **named)
        return attended


def query_factors(deployment: Deployment, folded: float) -> Sequence[float]:
    """What queries of each scale are multiplied by, for a layer that vLLM has built for scale 1.

    Args:
        folded: the layer's softmax scale, over that of plain attention.

    Raises:
        Unsupported: when the softmax scale is neither plain nor that of the method at scale 1.
    """
    at_scales = [deployment.softmax_factor(index) for index in range(len(deployment.scales))]
    if math.isclose(folded, at_scales[0], rel_tol=1e-6):
        return [factor / at_scales[0] for factor in at_scales]
    if math.isclose(folded, 1.0, rel_tol=1e-6):  # vLLM leaves mscale out where attention_factor is 1
        return [1.0] * len(at_scales)
    raise Unsupported(
        f"scaling needs layers that leave the softmax scale as it is, or multiply it by {at_scales[0]:g} as "
        f"rope_parameters say, got a layer that multiplies it by {folded:g}: serve this model without scaling"
    )


def register() -> None:
    """Register the op as ``torch.ops.vllm.posenc_query_factors``, and make vLLM's models build our class."""
    from vllm.utils.torch_utils import direct_register_custom_op

    direct_register_custom_op(
        op_name="posenc_query_factors",
        op_func=_query_factors,
        mutates_args=["factors"],
        fake_impl=_query_factors_fake,
        dispatch_key="CompositeExplicitAutograd",  # for every device
    )
    mla.MLAAttention = PosencMLAAttention


def _query_factors(query: Tensor, factors: Tensor) -> None:
    """Write each token's factor: that of the block that its key is written to, 1 where it is not written.

    Args:
        factors: float32 ``[at least num_tokens]``; those of ``num_tokens`` are written.
    """
    from vllm.forward_context import get_forward_context, is_forward_context_available

    out = factors[: query.shape[0]]
    slots = get_forward_context().slot_mapping if is_forward_context_available() else {}
    layer = next((name for name in slots or () if name in STATE.block_size), None)
    if STATE.block_query_factor is None or layer is None:
        out.fill_(1.0)
        return
    block_ids = slots[layer][: len(out)].div(STATE.block_size[layer], rounding_mode="floor").clamp_(min=0)
    out[len(block_ids) :] = 1.0
    out[: len(block_ids)] = STATE.block_query_factor[block_ids]


def _query_factors_fake(query: Tensor, factors: Tensor) -> None:
    pass
