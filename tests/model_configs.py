"""Configurations in the shape of published ones, of models that no test needs weights of."""

from __future__ import annotations

from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"

PLAMO_3: dict[str, Any] = {
    "model_type": "plamo3",
    "architectures": ["Plamo3ForCausalLM"],
    **{"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 2},
    **{"head_dim": 128, "intermediate_size": 8192, "vocab_size": 107520, "max_position_embeddings": 4096},
    **{"rope_theta": 1000000, "rope_local_theta": 10000, "sliding_window_pattern": 8},
    "interleaved_sliding_window": ([2048] * 7 + [None]) * 3,
    "layer_types": ([_SLIDING] * 7 + [_FULL]) * 3,
}
MIMO_V2: dict[str, Any] = {
    "model_type": "mimo_v2",
    "architectures": ["MiMoV2ForCausalLM"],
    **{"hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4},
    **{"head_dim": 192, "v_head_dim": 128, "swa_head_dim": 192, "swa_v_head_dim": 128, "swa_num_key_value_heads": 8},
    **{"rope_theta": 5000000, "swa_rope_theta": 10000, "partial_rotary_factor": 0.334},
    **{"sliding_window": 128, "sliding_window_size": 128, "hybrid_layer_pattern": ([0] + [1] * 5) * 8},
    **{"intermediate_size": 16384, "vocab_size": 152576, "max_position_embeddings": 262144},
}
# As saved before rope_parameters had a part for each type of layer.
LAGUNA: dict[str, Any] = {
    "model_type": "laguna",
    "architectures": ["LagunaForCausalLM"],
    **{"hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 48, "num_key_value_heads": 8},
    **{"head_dim": 128, "max_position_embeddings": 131072, "sliding_window": 512},
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    "swa_rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    "layer_types": ([_FULL] + [_SLIDING] * 3) * 10,
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    **{"hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8},
    **{"head_dim": 64, "max_position_embeddings": 131072, "initial_context_length": 4096, "sliding_window": 128},
    **{"rope_theta": 150000, "layer_types": [_SLIDING, _FULL] * 12},
    "rope_scaling": {
        **{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    },
}
SARVAM_MLA: dict[str, Any] = {
    "model_type": "sarvam_mla",
    "architectures": ["SarvamMLAForCausalLM"],
    **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 64, "num_key_value_heads": 64},
    **{"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"rope_theta": 10000.0, "max_position_embeddings": 4096},
}
# Of Qwen2.5's checkpoints for a million tokens.
DUAL_CHUNKS = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
GEMMA_3_1B: dict[str, Any] = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    **{"hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1},
    **{"head_dim": 256, "max_position_embeddings": 32768, "sliding_window": 512, "sliding_window_pattern": 6},
    **{"rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": None},
}
GEMMA_3_27B: dict[str, Any] = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "model_type": "gemma3_text",
        **{"hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16},
        **{"head_dim": 128, "max_position_embeddings": 131072, "sliding_window": 1024, "sliding_window_pattern": 6},
        **{"rope_theta": 1000000, "rope_local_base_freq": 10000},
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 32, "num_hidden_layers": 1},
}
GEMMA_3_12B: dict[str, Any] = GEMMA_3_27B | {
    "text_config": GEMMA_3_27B["text_config"]
    | {"hidden_size": 3840, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8}
    | {"head_dim": 256},
}
GEMMA_4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "architectures": ["Gemma4ForCausalLM"],
    **{"hidden_size": 2560, "num_hidden_layers": 42, "num_attention_heads": 8, "num_key_value_heads": 2},
    **{"head_dim": 256, "global_head_dim": 512, "max_position_embeddings": 131072, "sliding_window": 512},
    "rope_parameters": {
        _FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
        _SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    },
    "layer_types": ([_SLIDING] * 5 + [_FULL]) * 7,
}
OLMO_3: dict[str, Any] = {
    "model_type": "olmo3",
    "architectures": ["Olmo3ForCausalLM"],
    **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32},
    **{"max_position_embeddings": 65536, "sliding_window": 4096, "rope_theta": 500000},
    "rope_scaling": {
        **{"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
        **{"beta_fast": 32, "beta_slow": 1, "attention_factor": 1.2079441541679836},
    },
    "layer_types": ([_SLIDING] * 3 + [_FULL]) * 8,
}
STEP_3_5: dict[str, Any] = {
    "model_type": "step3p5",
    "architectures": ["Step3p5ForCausalLM"],
    **{"hidden_size": 4096, "num_hidden_layers": 45, "num_attention_heads": 64, "num_attention_groups": 8},
    **{"head_dim": 128, "max_position_embeddings": 262144, "sliding_window": 512},
    "rope_theta": [5000000.0, 10000.0, 10000.0, 10000.0] * 12,
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 12,
    "rope_scaling": {
        **{"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 131072},
        **{"low_freq_factor": 1.0, "high_freq_factor": 32.0},
    },
    **{"yarn_only_types": [_FULL], "use_rope_layers": []},
    "layer_types": ([_FULL] + [_SLIDING] * 3) * 12,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    **{"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128},
    **{"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"max_position_embeddings": 163840, "rope_theta": 10000},
    "rope_scaling": {
        **{"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1},
        **{"mscale": 1.0, "mscale_all_dim": 1.0},
    },
}
MINISTRAL_3: dict[str, Any] = {
    "model_type": "mistral3",
    "architectures": ["Mistral3ForConditionalGeneration"],
    "text_config": {
        "model_type": "ministral3",
        **{"hidden_size": 4096, "num_hidden_layers": 34, "num_attention_heads": 32, "num_key_value_heads": 8},
        **{"head_dim": 128, "max_position_embeddings": 262144, "sliding_window": None},
        "rope_parameters": {
            **{"type": "yarn", "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0},
            **{"original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0},
            **{"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
        },
    },
    "vision_config": {"model_type": "pixtral", "hidden_size": 32, "num_hidden_layers": 1},
}
QWEN_2_5_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    **{"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4},
    **{"max_position_embeddings": 128000, "sliding_window": 32768, "use_sliding_window": False},
    **{"rope_theta": 1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
}
QWEN_3_5: dict[str, Any] = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen3_5_text",
        **{"hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4},
        **{"head_dim": 256, "max_position_embeddings": 262144, "full_attention_interval": 4},
        "rope_parameters": {
            **{"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
            **{"mrope_section": [11, 11, 10], "mrope_interleaved": True},
        },
        "layer_types": (["linear_attention"] * 3 + [_FULL]) * 8,
    },
}
QWEN_3_5_9B: dict[str, Any] = QWEN_3_5 | {
    "text_config": QWEN_3_5["text_config"]
    | {"hidden_size": 4096, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4}
    | {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32"},
}
QWEN_3_VL_8B: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen3_vl_text",
        **{"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8},
        **{"head_dim": 128, "max_position_embeddings": 262144, "rope_theta": 5000000},
        "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
    },
}
INTERNLM_2_5: dict[str, Any] = {
    "model_type": "internlm2",
    "architectures": ["InternLM2ForCausalLM"],
    **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"max_position_embeddings": 32768, "rope_theta": 1000000, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
}
HUNYUAN_7B: dict[str, Any] = {
    "model_type": "hunyuan_v1_dense",
    "architectures": ["HunYuanDenseV1ForCausalLM"],
    **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"head_dim": 128, "max_position_embeddings": 32768, "rope_theta": 10000.0},
    "rope_scaling": {
        **{"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1},
        **{"mscale": 1.0, "mscale_all_dim": 1.0},
    },
}
QWEN_3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    **{"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000, "rope_scaling": None},
}
LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"max_position_embeddings": 8192, "rope_theta": 500000.0, "rope_scaling": None},
}
LLAMA_3_1_8B: dict[str, Any] = LLAMA_3_8B | {
    "max_position_embeddings": 131072,
    "rope_scaling": {
        **{"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
}
MISTRAL_7B: dict[str, Any] = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"max_position_embeddings": 32768, "rope_theta": 1000000.0, "sliding_window": None},
}
# Its lists of factors have 48 numbers each, which the memory that it takes does not depend on.
PHI_4_MINI: dict[str, Any] = {
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    **{"hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8},
    **{"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_theta": 10000.0},
    **{"partial_rotary_factor": 0.75, "sliding_window": 262144},
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0 + pair for pair in range(48)]},
}
SMOLLM2_135M: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    **{"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3},
    **{"max_position_embeddings": 8192, "rope_theta": 100000, "rope_scaling": None},
}
# Their checkpoints come with code of their own for the configuration, which does no more than PreTrainedConfig.
OWN_CODE = ("plamo3", "mimo_v2", "internlm2")
