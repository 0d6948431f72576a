"""MPT (MosaicML 2023) in vLLM, which no longer has it: llm-foundry's decoder with ALiBi.

Written from llm-foundry (llmfoundry/models/mpt/modeling_mpt.py). transformers' ``MptForCausalLM`` computes the same for
MPT-7B, but ignores ``alibi_bias_max``, ``expansion_ratio``, ``logit_scale`` and ``no_bias``; this model reads them.
If the number of heads is no power of two, the slopes have the order of ALiBi's authors, as in llm-foundry.

Checkpoints of llm-foundry and of transformers both load, because their weights have the same names. The configuration
is transformers' own, so ``trust_remote_code`` must be left out. Tensor and pipeline parallelism work. LoRA and
quantised weights are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.layers.activation import get_act_fn
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.model_executor.models.utils import (
    AutoWeightsLoader,
    WeightsMapper,
    make_empty_intermediate_tensors_factory,
    make_layers,
    maybe_prefix,
)
from vllm.sequence import IntermediateTensors

from posenc_runtime.vllm_adapter.checkpoint import mpt_rules
from posenc_runtime.vllm_adapter.in_worker.models.alibi_attention import AlibiAttention
from posenc_runtime.vllm_adapter.in_worker.models.weights import refuse_lora_and_quantised


class MptFeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, config: Any, prefix: str) -> None:
        super().__init__()
        inner, bias = config.expansion_ratio * config.d_model, not config.no_bias
        self.up_proj = ColumnParallelLinear(config.d_model, inner, bias=bias, prefix=f"{prefix}.up_proj")
        self.act = get_act_fn("gelu")
        self.down_proj = RowParallelLinear(inner, config.d_model, bias=bias, prefix=f"{prefix}.down_proj")

    def forward(self, hidden_states: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.act(self.up_proj(hidden_states)[0]))[0]
        return out


class MptBlock(nn.Module):
    """Attention with ALiBi, then two linear layers. Each follows a norm and adds its result to its input."""

    def __init__(self, config: Any, cache_config: Any, prefix: str) -> None:
        super().__init__()
        self.norm_1 = _norm(config)
        self.attn = AlibiAttention(
            config.d_model,
            config.n_heads,
            alibi_bias_max=config.attn_config.alibi_bias_max,
            scale=config.attn_config.softmax_scale,
            clip=config.attn_config.clip_qkv or None,
            bias=not config.no_bias,
            cache_config=cache_config,
            prefix=f"{prefix}.attn",
        )
        self.norm_2 = _norm(config)
        self.ffn = MptFeedForward(config, f"{prefix}.ffn")

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        hidden_states = hidden_states + self.attn(positions, self.norm_1(hidden_states))
        out: Tensor = hidden_states + self.ffn(self.norm_2(hidden_states))
        return out


def _norm(config: Any) -> nn.LayerNorm:
    # A "low precision" norm computes in the data type of the rest of the model, as this one does.
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon, bias=not config.no_bias)


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "intermediate_tensors": 0, "inputs_embeds": 0})
class MptModel(nn.Module):
    """From token ids to the last hidden states, or the part of it that is this rank's pipeline stage."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config, cache_config = vllm_config.model_config.hf_config, vllm_config.cache_config
        self.wte = VocabParallelEmbedding(config.vocab_size, config.d_model)
        self.start_layer, self.end_layer, self.blocks = make_layers(
            config.n_layers, lambda prefix: MptBlock(config, cache_config, prefix), prefix=f"{prefix}.blocks"
        )
        self.norm_f = _norm(config)
        self.make_empty_intermediate_tensors = make_empty_intermediate_tensors_factory(
            ["hidden_states"], config.d_model
        )

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        embeddings: Tensor = self.wte(input_ids)
        return embeddings

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any,
        inputs_embeds: Tensor | None = None,
    ) -> Any:
        if not get_pp_group().is_first_rank:
            hidden_states = intermediate_tensors["hidden_states"]
        elif inputs_embeds is not None:
            hidden_states = inputs_embeds
        else:
            hidden_states = self.wte(input_ids)
        for block in islice(self.blocks, self.start_layer, self.end_layer):
            hidden_states = block(positions, hidden_states)
        if not get_pp_group().is_last_rank:
            return IntermediateTensors({"hidden_states": hidden_states})
        return self.norm_f(hidden_states)


class MptForCausalLM(nn.Module, SupportsPP):
    """MPT with a head over the vocabulary, which is tied to the embeddings if the configuration says so.

    Raises:
        Unsupported: when the checkpoint is a variant that is not served, or LoRA or quantisation is asked for.
    """

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_substr={".attn.Wqkv.": ".attn.qkv_proj.", ".attn.out_proj.": ".attn.o_proj."}
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        mpt_rules.refuse(config)
        refuse_lora_and_quantised(vllm_config)
        self.transformer = MptModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "transformer"))
        self.lm_head = ParallelLMHead(config.vocab_size, config.d_model, prefix=maybe_prefix(prefix, "lm_head"))
        if config.tie_word_embeddings:
            self.lm_head = self.lm_head.tie_weights(self.transformer.wte)
        self.logits_processor = LogitsProcessor(config.vocab_size, scale=mpt_rules.logit_scale(config))
        self.make_empty_intermediate_tensors = self.transformer.make_empty_intermediate_tensors

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.transformer.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Any:
        return self.transformer(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        logits: Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded
