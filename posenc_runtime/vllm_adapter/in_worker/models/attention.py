"""Attention of the decoder in vLLM: vLLM's projections and cache, and the steps that the encoding changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from posenc_runtime.decoder.distance_bias import DistanceBiasEncoding
from posenc_runtime.decoder.encoding import PositionEncoding
from posenc_runtime.decoder.places import standing_at
from posenc_runtime.decoder.positions import encoding
from posenc_runtime.decoder.positions.cope import CopeEncoding
from posenc_runtime.decoder.positions.rope import Rope
from posenc_runtime.encodings.distance import BiasForm, of_heads
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.vllm_adapter.checkpoint.attention_needs import needed_by


class PosencAttention(nn.Module):
    """The attention of one layer. Weights have Llama's names, and ``position`` if each layer has its own encoding."""

    def __init__(
        self,
        config: Any,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        max_position_embeddings: int = 8192,
        quant_config: Any = None,
        bias: bool = False,
        bias_o_proj: bool = False,
        cache_config: Any = None,
        prefix: str = "",
        attn_type: str = AttentionType.DECODER,
    ) -> None:
        super().__init__()
        ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        self.head_dim: int = config.head_dim
        self.num_heads = num_heads // ranks
        self.num_kv_heads = max(1, num_kv_heads // ranks)
        # If there are fewer KV heads than ranks, neighbouring ranks hold the same head.
        first_kv_head = rank * num_kv_heads // ranks
        self.heads = slice(rank * self.num_heads, (rank + 1) * self.num_heads)
        self.kv_heads = slice(first_kv_head, first_kv_head + self.num_kv_heads)
        self.qkv_proj = QKVParallelLinear(
            hidden_size,
            self.head_dim,
            num_heads,
            num_kv_heads,
            bias=bias,
            quant_config=quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            num_heads * self.head_dim,
            hidden_size,
            bias=bias_o_proj,
            quant_config=quant_config,
            prefix=f"{prefix}.o_proj",
        )
        kind = encoding(config.position_encoding_type)
        self._shared: tuple[PositionEncoding, ...] = ()
        if not kind.is_shared(config):
            self.position = kind(config)
            self.position.keep_heads(self.heads, self.kv_heads)
        self.rotary_emb: nn.Module | None = None
        if issubclass(kind, Rope):
            longest = get_current_vllm_config().model_config.max_model_len
            self.rotary_emb = get_rope(
                self.head_dim, max_position=longest, rope_parameters=config.rope_parameters, is_neox_style=True
            )
        self.encodes = self.rotary_emb is None and kind.encodes()
        self.attn = Attention(
            self.num_heads,
            self.head_dim,
            self.head_dim**-0.5,
            num_kv_heads=self.num_kv_heads,
            cache_config=cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.attn",
            attn_type=attn_type,
            **self._attention_of(kind, config.position_encoding_type),
        )

    def share(self, position: PositionEncoding) -> None:
        """Use the encoding of the whole model. A tuple holds it, so that it does not become a submodule here, too."""
        self._shared = (position,)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """``[num_tokens, hidden_size]`` to the same."""
        qkv, _ = self.qkv_proj(hidden_states)
        of_keys = self.num_kv_heads * self.head_dim
        query, key, value = qkv.split([self.num_heads * self.head_dim, of_keys, of_keys], dim=-1)
        if self.rotary_emb is not None:
            query, key = self.rotary_emb(positions, query, key)
        elif self.encodes:
            query, key = self._encoded(positions, query, key)
        out: Tensor = self.o_proj(self.attn(query, key, value))[0]
        return out

    def _encoded(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        here = standing_at(positions[None])
        position = self._position()
        query, key = (states.view(len(states), -1, self.head_dim).transpose(0, 1)[None] for states in (query, key))
        query, key = position.encode(query, key, here, position.prepare(here, torch.float32))
        return query[0].transpose(0, 1).flatten(1), key[0].transpose(0, 1).flatten(1)

    def _position(self) -> PositionEncoding:
        return self._shared[0] if self._shared else self.position

    def _attention_of(self, kind: type[PositionEncoding], name: str) -> dict[str, Any]:
        """The keywords that ask for one of our backends; none if vLLM's own attention is enough."""
        ours: dict[str, Any] = {"encoding": name}
        if current_platform.is_cuda_alike():  # there each layer may have its own backend; the CPU has one for all
            ours["attn_backend"] = AttentionBackendEnum.CUSTOM.get_class()
        match needed_by(kind):
            case "bias":
                return ours | {"distance_bias": self._form}
            case "cope":
                return ours | {"cope": self._cope}
            case "plain":
                return ours | {"attend": self._position}
            case "stock":
                return {}

    def _form(self) -> BiasForm:
        position = self._position()
        assert isinstance(position, DistanceBiasEncoding)
        with torch.no_grad():
            return of_heads(position.bias().form(), self.heads)

    def _cope(self) -> Cope:
        position = self._position()
        assert isinstance(position, CopeEncoding)
        return Cope(position.pos_emb.detach(), position.qe_scale)
