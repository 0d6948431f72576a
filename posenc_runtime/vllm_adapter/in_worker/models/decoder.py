"""The decoder of every position encoding (``posenc_runtime.decoder``) in vLLM: Llama's blocks around our attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaModel

from posenc_runtime.decoder.places import standing_at
from posenc_runtime.decoder.positions import encoding
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.models.attention import PosencAttention


class PosencDecoderLayer(LlamaDecoderLayer):
    """Llama's block around an attention of ours."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "", config: Any = None) -> None:
        super().__init__(vllm_config, prefix, config, attn_layer_type=PosencAttention)


class PosencModel(LlamaModel):
    """Llama's model. An encoding that all layers share is at ``position``."""

    def __init__(
        self, *, vllm_config: VllmConfig, prefix: str = "", layer_type: type[nn.Module] = PosencDecoderLayer
    ) -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)
        kind = encoding(self.config.position_encoding_type)
        self.embeds = False
        if kind.is_shared(self.config):
            self.position = kind(self.config)
            self.embeds = kind.embeds()
            for layer in self.layers:
                if hasattr(layer, "self_attn"):  # those of other pipeline stages are empty
                    layer.self_attn.share(self.position)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any,
        inputs_embeds: Tensor | None = None,
        **extra_layer_kwargs: Any,
    ) -> Any:
        if self.embeds and get_pp_group().is_first_rank:
            embeddings = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
            inputs_embeds = self.position.embed(embeddings[None], standing_at(positions[None]))[0]
        return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds, **extra_layer_kwargs)


class PosencForCausalLM(LlamaForCausalLM):
    """The decoder with a head over the vocabulary, under any position encoding.

    Raises:
        Unsupported: when ``max_model_len`` is longer than the encoding has positions for.
    """

    def __init__(
        self, *, vllm_config: VllmConfig, prefix: str = "", layer_type: type[nn.Module] = PosencDecoderLayer
    ) -> None:
        config, longest = vllm_config.model_config.hf_config, vllm_config.model_config.max_model_len
        furthest = encoding(config.position_encoding_type).longest(config, torch.get_default_dtype())
        if furthest is not None and longest > furthest:
            raise Unsupported(
                f"max_model_len must be at most {furthest} for position_encoding_type {config.position_encoding_type} "
                f"of this checkpoint, got {longest}: there are no positions past it"
            )
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)

    def _init_model(
        self, vllm_config: VllmConfig, prefix: str = "", layer_type: type[nn.Module] = PosencDecoderLayer
    ) -> PosencModel:
        return PosencModel(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)
