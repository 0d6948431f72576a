"""Models that see: with M-RoPE, of whose three axes text has one and the same position, and with plain RoPE."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import (
    Gemma3Config,
    Glm4vConfig,
    LlamaConfig,
    LlavaConfig,
    PreTrainedConfig,
    Qwen2_5_VLConfig,
    Qwen3VLConfig,
)

from tests.families import layers
from tests.families.family import (
    FULL,
    LOCAL,
    NO_SPECIAL_TOKENS,
    OWN_FACTOR,
    PLAIN,
    SIZES,
    SLIDING,
    WINDOW,
    Family,
    Picture,
)

_TEXT: dict[str, Any] = SIZES | {"num_hidden_layers": 2}
# As in the published tokenizers, in the order of their numbers, which begin where those of bytes end.
_OF_QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_OF_GLM = (
    *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
    *("<|image|>", "<|video|>"),
)
_NUMBERS: dict[str, Any] = {
    "vision_start_token_id": 256,
    "vision_end_token_id": 257,
    "image_token_id": 258,
    "video_token_id": 259,
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


def glm4v() -> PreTrainedConfig:
    """As GLM-4.1V: the language model of GLM-4."""
    mrope = PLAIN | {"mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}
    return Glm4vConfig(
        text_config=_TEXT | {"attention_bias": True, "rope_parameters": mrope},
        vision_config=_TOWER | {"image_size": 112},
        image_start_token_id=256,
        image_end_token_id=257,
        video_start_token_id=258,
        video_end_token_id=259,
        image_token_id=260,
        video_token_id=261,
        **NO_SPECIAL_TOKENS,
    )


_CLIP: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"image_size": 56, "patch_size": 14},
}


def gemma3_sees() -> PreTrainedConfig:
    linear = PLAIN | {"rope_type": "linear", "factor": OWN_FACTOR}
    text = layers.gemma3().to_dict() | {"rope_parameters": {FULL: linear, SLIDING: LOCAL}}
    return Gemma3Config(
        text_config=text,
        vision_config=_CLIP | {"model_type": "siglip_vision_model", "vision_use_head": False},
        mm_tokens_per_image=4,
        boi_token_index=256,
        eoi_token_index=257,
        image_token_index=258,
        tie_word_embeddings=True,
        **NO_SPECIAL_TOKENS,
    )


def llava() -> PreTrainedConfig:
    return LlavaConfig(
        text_config=LlamaConfig(**_TEXT, rope_parameters=PLAIN).to_dict(),
        vision_config=_CLIP | {"model_type": "clip_vision_model"},
        image_token_id=256,
        image_seq_length=16,
        tie_word_embeddings=False,
        **NO_SPECIAL_TOKENS,
    )


def _as_llava(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As vLLM reads the tower, whose names transformers has changed since."""
    tower = "model.vision_tower."
    return {name.replace(tower, f"{tower}vision_model."): weight.clone() for name, weight in weights.items()}


def _with_axes(patch: int, placeholder: int) -> Picture:
    """A picture of 3 times 4 tokens, whose size no processor has to change."""
    height, width = 3 * 2 * patch, 4 * 2 * patch
    return Picture(([256], [257]), placeholder, num_tokens=12, height=height, width=width, has_axes=True)


def _processors(of: str, patch: int, *, images: str = "Qwen2VL", videos: str = "Qwen2VL") -> dict[str, dict[str, Any]]:
    """Files of a processor whose images and videos are of 1 to 16 tokens.

    Args:
        images: whose processor of images; ``videos``: of videos.
    """
    token = (2 * patch) ** 2  # pixels
    frames = 2 if images == "Glm4v" else 1  # which it counts an image as
    shared = {
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": frames * token, "longest_edge": 16 * frames * token},
        "processor_class": f"{of}Processor",
    }
    return {
        "preprocessor_config.json": shared | {"image_processor_type": f"{images}ImageProcessor"},
        "video_preprocessor_config.json": shared | {"video_processor_type": f"{videos}VideoProcessor"},
    }


FAMILIES = {
    "qwen2_5_vl": Family(
        "Qwen2_5_VLForConditionalGeneration",
        "M-RoPE in sections; a tower with a rotation of its own",
        qwen2_5_vl,
        tokens=_OF_QWEN,
        files=_processors("Qwen2_5_VL", 14),
        picture=_with_axes(14, placeholder=258),
    ),
    "qwen3_vl": Family(
        "Qwen3VLForConditionalGeneration",
        "interleaved M-RoPE; a tower with a rotation of its own",
        qwen3_vl,
        tokens=_OF_QWEN,
        files=_processors("Qwen3VL", 16, videos="Qwen3VL"),
        picture=_with_axes(16, placeholder=258),
    ),
    "glm4v": Family(
        "Glm4vForConditionalGeneration",
        "M-RoPE in sections, of half a head, whose pairs are neighbours; a tower with a rotation of its own",
        glm4v,
        tokens=_OF_GLM,
        files=_processors("Glm4v", 14, images="Glm4v", videos="Glm4v"),
        picture=_with_axes(14, placeholder=260),
    ),
    "gemma3_sees": Family(
        "Gemma3ForConditionalGeneration",
        "layers with a window have a rotation of their own, the others linear scaling; a tower",
        gemma3_sees,
        window=WINDOW,
        # Its images attend in both directions, which vLLM's attention on the CPU does not.
        engine={"language_model_only": True},
        tokens=("<boi>", "<eoi>", "<image>", *("\n" * length for length in range(1, 5))),
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Gemma3ImageProcessor",
                "size": {"height": 56, "width": 56},
                "processor_class": "Gemma3Processor",
            },
            "processor_config.json": {"image_seq_length": 4, "processor_class": "Gemma3Processor"},
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "extra_special_tokens": {"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<image>"},
            },
        },
    ),
    "llava": Family(
        "LlavaForConditionalGeneration",
        "a tower before a Llama: images have positions as text has",
        llava,
        renamed=_as_llava,
        tokens=("<image>",),
        files={
            "preprocessor_config.json": {
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": 56},
                "crop_size": {"height": 56, "width": 56},
                "processor_class": "LlavaProcessor",
            },
            "processor_config.json": {
                "patch_size": 14,
                "vision_feature_select_strategy": "default",
                "image_token": "<image>",
                "num_additional_image_tokens": 1,
                "processor_class": "LlavaProcessor",
            },
        },
        picture=Picture(([], []), 256, num_tokens=16, height=56, width=56),
    ),
}
