"""Attention with ALiBi and one fused projection of queries, keys and values, as in MPT and Baichuan-13B."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear

from posenc_runtime.encodings.bias.alibi import Alibi


class AlibiAttention(nn.Module):
    """The attention of one layer, with the heads and slopes of one rank.

    There are as many KV heads as query heads. The bias is added to scores after they are scaled.

    Args:
        alibi_bias_max: the flattest head's slope is 2 to the power of minus this; 8 in the paper.
        scale: multiplies scores; by default one divided by the square root of a head's size.
        clip: projected queries, keys and values are clamped to ``-clip`` and ``clip``; None does not clamp them.
        bias: whether both projections have a bias.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        alibi_bias_max: float = 8.0,
        scale: float | None = None,
        clip: float | None = None,
        bias: bool = False,
        cache_config: Any = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        head_dim = hidden_size // num_heads
        of_rank = num_heads // get_tensor_model_parallel_world_size()
        first = get_tensor_model_parallel_rank() * of_rank
        slopes = Alibi(num_heads=num_heads, alibi_bias_max=alibi_bias_max).slopes()[first : first + of_rank]
        self.clip = clip
        self.qkv_proj = QKVParallelLinear(
            hidden_size, head_dim, num_heads, num_heads, bias=bias, prefix=f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(hidden_size, hidden_size, bias=bias, prefix=f"{prefix}.o_proj")
        self.attn = Attention(
            of_rank,
            head_dim,
            head_dim**-0.5 if scale is None else scale,
            num_kv_heads=of_rank,
            alibi_slopes=slopes.tolist(),
            cache_config=cache_config,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """``[num_tokens, hidden_size]`` to the same shape. Positions are not used: the cache gives the distances."""
        qkv, _ = self.qkv_proj(hidden_states)
        if self.clip is not None:
            qkv = qkv.clamp(-self.clip, self.clip)
        query, key, value = qkv.chunk(3, dim=-1)
        out: Tensor = self.o_proj(self.attn(query, key, value))[0]
        return out
