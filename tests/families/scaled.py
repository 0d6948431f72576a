"""One rotation that is a scaled one, and what is left of models with one rotation in every layer."""

from __future__ import annotations

from transformers import (
    GPTNeoXConfig,
    GraniteConfig,
    HunYuanDenseV1Config,
    LlamaConfig,
    Ministral3Config,
    Olmo2Config,
    PreTrainedConfig,
    Qwen3Config,
)

from tests.families.family import ORIGINAL, OWN_FACTOR, PLAIN, SIZES, TRAINED, YARN, Family


def ministral3() -> PreTrainedConfig:
    own = {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.1}
    return Ministral3Config(
        **SIZES,
        num_hidden_layers=2,
        head_dim=32,
        rope_parameters=YARN | own | {"max_position_embeddings": TRAINED},
        # What vLLM makes of a configuration in Mistral's own format; of this format it does not read the beta above.
        llama_4_scaling={"beta": 0.1, "original_max_position_embeddings": ORIGINAL},
    )


def qwen3_yarn() -> PreTrainedConfig:
    """As DeepSeek-R1-0528-Qwen3-8B, and as Qwen's cards say."""
    return Qwen3Config(**SIZES, num_hidden_layers=2, head_dim=32, rope_parameters=YARN)


def llama_linear() -> PreTrainedConfig:
    linear = PLAIN | {"rope_type": "linear", "factor": OWN_FACTOR}
    return LlamaConfig(**SIZES, num_hidden_layers=2, rope_parameters=linear)


def llama_dynamic() -> PreTrainedConfig:
    """As InternLM 3, which vLLM serves with its code for Llama."""
    dynamic = PLAIN | {"rope_type": "dynamic", "factor": OWN_FACTOR}
    return LlamaConfig(**SIZES, num_hidden_layers=2, rope_parameters=dynamic)


def hunyuan() -> PreTrainedConfig:
    alpha = {"alpha": 8.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
    return HunYuanDenseV1Config(
        **SIZES, num_hidden_layers=2, head_dim=32, rope_parameters=PLAIN | {"rope_type": "dynamic"} | alpha
    )


def granite() -> PreTrainedConfig:
    return GraniteConfig(
        **SIZES,
        num_hidden_layers=2,
        embedding_multiplier=6.0,
        residual_multiplier=0.5,
        attention_multiplier=0.2,
        logits_scaling=0.5,
        rope_parameters=PLAIN,
    )


def olmo2() -> PreTrainedConfig:
    return Olmo2Config(**SIZES, num_hidden_layers=2, rope_parameters=PLAIN)


def gpt_neox() -> PreTrainedConfig:
    sizes = {size: value for size, value in SIZES.items() if size != "num_key_value_heads"}
    return GPTNeoXConfig(**sizes, num_hidden_layers=2, rope_parameters=PLAIN | {"partial_rotary_factor": 0.25})


FAMILIES = {
    "ministral3": Family("Ministral3ForCausalLM", "own YaRN; queries grow with their position", ministral3),
    "qwen3_yarn": Family("Qwen3ForCausalLM", "own YaRN", qwen3_yarn),
    "llama_linear": Family("LlamaForCausalLM", "own linear scaling", llama_linear),
    "llama_dynamic": Family("LlamaForCausalLM", "own dynamic NTK", llama_dynamic),
    "hunyuan": Family("HunYuanDenseV1ForCausalLM", "own NTK with alpha; Transformers backend", hunyuan),
    "granite": Family("GraniteForCausalLM", "asks whether there is a rotation before it rotates", granite),
    "olmo2": Family("Olmo2ForCausalLM", "Transformers backend", olmo2),
    "gpt_neox": Family("GPTNeoXForCausalLM", "a quarter of each head is rotated; Transformers backend", gpt_neox),
}
