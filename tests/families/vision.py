"""Models that see: with M-RoPE, of whose three axes text has one and the same position, and with plain RoPE."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor
from transformers import Gemma3Config, LlamaConfig, LlavaConfig, PreTrainedConfig, Qwen2_5_VLConfig, Qwen3VLConfig

from tests.families import layers
from tests.families.family import FULL, LOCAL, NO_SPECIAL_TOKENS, OWN_FACTOR, PLAIN, SIZES, SLIDING, WINDOW, Family

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
        image_token_id=_LLAVA_IMAGE,
        image_seq_length=16,
        tie_word_embeddings=False,
        **NO_SPECIAL_TOKENS,
    )


def _as_llava(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As vLLM reads the tower, whose names transformers has changed since."""
    tower = "model.vision_tower."
    return {name.replace(tower, f"{tower}vision_model."): weight.clone() for name, weight in weights.items()}


@dataclasses.dataclass(frozen=True)
class Picture:
    """How a prompt names a picture, and what it becomes.

    Attributes:
        around: the tokens before and after its placeholder.
        placeholder: a token.
        num_tokens: that take the placeholder's place.
        height: pixels
        width: pixels
    """

    around: tuple[list[int], list[int]]
    placeholder: int
    num_tokens: int
    height: int
    width: int


def _of_qwen(patch: int) -> Picture:
    return Picture(([START], [END]), IMAGE, num_tokens=12, height=3 * 2 * patch, width=4 * 2 * patch)


_LLAVA_IMAGE = 256
PICTURES = {
    "qwen2_5_vl": _of_qwen(14),
    "qwen3_vl": _of_qwen(16),
    "llava": Picture(([], []), _LLAVA_IMAGE, num_tokens=16, height=56, width=56),
}


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
    ),
}
