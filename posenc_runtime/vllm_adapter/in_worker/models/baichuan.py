"""Baichuan and Baichuan 2, 7B and 13B, in vLLM, which no longer has them: Llama's blocks with one fused projection.

Written from the published description (Yang et al. 2023, arXiv:2309.10305, section 2, "Positional Embeddings",
"Activations and Normalizations" and "Optimizations") and the names in the checkpoints. The 13B have ALiBi with 40
heads, not a power of two; the 7B have Llama's rotary embeddings, and are scaled like Llama. Baichuan 2 multiplies by
the normalised rows of ``lm_head`` ("NormHead").

Tensor and pipeline parallelism are Llama's; LoRA and quantised weights are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import normalize
from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaModel
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from posenc_runtime.vllm_adapter.checkpoint import baichuan_config
from posenc_runtime.vllm_adapter.in_worker.models.alibi_attention import AlibiAttention
from posenc_runtime.vllm_adapter.in_worker.models.weights import refuse_lora_and_quantised


class BaichuanAlibiAttention(AlibiAttention):
    """Takes the arguments that ``LlamaDecoderLayer`` passes. The ignored ones are the same for every Baichuan."""

    def __init__(
        self, *, hidden_size: int, num_heads: int, cache_config: Any = None, prefix: str = "", **_: Any
    ) -> None:
        super().__init__(hidden_size, num_heads, cache_config=cache_config, prefix=prefix)


class BaichuanDecoderLayer(LlamaDecoderLayer):
    """Llama's block, with ALiBi attention if the checkpoint has ALiBi."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "", config: Any = None) -> None:
        alibi = vllm_config.model_config.hf_config.alibi
        attention = BaichuanAlibiAttention if alibi else LlamaAttention
        super().__init__(vllm_config, prefix, config, attn_layer_type=attention)


class BaichuanModel(LlamaModel):
    """Llama's model, which loads the checkpoints' ``W_pack`` as the fused projection."""

    hf_to_vllm_mapper = LlamaModel.hf_to_vllm_mapper | WeightsMapper(orig_to_new_substr={".W_pack.": ".qkv_proj."})


class BaichuanForCausalLM(LlamaForCausalLM):
    """Baichuan with a head over the vocabulary. If ``norm_head`` is true, the head is normalised when it is loaded.

    Raises:
        Unsupported: when the checkpoint is a variant that is not served, or LoRA or quantisation is asked for.
    """

    def __init__(
        self, *, vllm_config: VllmConfig, prefix: str = "", layer_type: type[nn.Module] = BaichuanDecoderLayer
    ) -> None:
        config = vllm_config.model_config.hf_config
        baichuan_config.refuse(config)
        refuse_lora_and_quantised(vllm_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)

    def _init_model(
        self, vllm_config: VllmConfig, prefix: str = "", layer_type: type[nn.Module] = BaichuanDecoderLayer
    ) -> BaichuanModel:
        return BaichuanModel(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        if self.config.norm_head:
            weights = normalised_head(weights)
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights)
        return loaded


def normalised_head(weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
    """The same weights, but every row of ``lm_head.weight``, ``[vocab_size, hidden_size]``, is scaled to length 1."""
    for name, weight in weights:
        yield name, normalize(weight.float()).to(weight.dtype) if name == "lm_head.weight" else weight
