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
# Without the YaRN that the published one has, as a refusal of it recommends.
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    **{"hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8},
    **{"head_dim": 64, "max_position_embeddings": 4096, "sliding_window": 128},
    "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
    "layer_types": [_SLIDING, _FULL] * 12,
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
