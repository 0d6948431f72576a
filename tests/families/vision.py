"""Models that see: M-RoPE, of whose three axes text has one and the same position."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, Qwen2_5_VLConfig, Qwen3VLConfig

from tests.families.family import NO_SPECIAL_TOKENS, PLAIN, SIZES, Family

_TEXT: dict[str, Any] = SIZES | {"num_hidden_layers": 2}
# As in the published tokenizers, in the order of their numbers, which begin where those of bytes end.
TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
START, END, IMAGE, _VIDEO = range(256, 260)
_NUMBERS: dict[str, Any] = {
    "vision_start_token_id": START,
    "vision_end_token_id": END,
    "image_token_id": IMAGE,
    "video_token_id": _VIDEO,
    "tie_word_embeddings": False,
    **NO_SPECIAL_TOKENS,
}
_TOWER: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": SIZES["hidden_size"],
}


def qwen2_5_vl() -> PreTrainedConfig:
    mrope = PLAIN | {"mrope_section": [4, 6, 6]}
    tower = _TOWER | {"window_size": 56, "fullatt_block_indexes": [1]}
    return Qwen2_5_VLConfig(text_config=_TEXT | {"rope_parameters": mrope}, vision_config=tower, **_NUMBERS)


def qwen3_vl() -> PreTrainedConfig:
    mrope = PLAIN | {"mrope_section": [6, 5, 5], "mrope_interleaved": True}
    text = _TEXT | {"head_dim": 32, "rope_parameters": mrope}
    tower = _TOWER | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    return Qwen3VLConfig(text_config=text, vision_config=tower, **_NUMBERS)


def _processors(of: str, patch: int) -> dict[str, dict[str, Any]]:
    """Files of a processor whose images and videos are of 1 to 16 tokens."""
    token = (2 * patch) ** 2  # pixels
    shared = {
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": token, "longest_edge": 16 * token},
        "processor_class": f"{of}Processor",
    }
    videos = "Qwen3VLVideoProcessor" if of == "Qwen3VL" else "Qwen2VLVideoProcessor"
    return {
        "preprocessor_config.json": shared | {"image_processor_type": "Qwen2VLImageProcessor"},
        "video_preprocessor_config.json": shared | {"video_processor_type": videos},
    }


FAMILIES = {
    "qwen2_5_vl": Family(
        "Qwen2_5_VLForConditionalGeneration",
        "M-RoPE in sections; a tower with a rotation of its own",
        qwen2_5_vl,
        tokens=TOKENS,
        files=_processors("Qwen2_5_VL", 14),
    ),
    "qwen3_vl": Family(
        "Qwen3VLForConditionalGeneration",
        "interleaved M-RoPE; a tower with a rotation of its own",
        qwen3_vl,
        tokens=TOKENS,
        files=_processors("Qwen3VL", 16),
    ),
}
