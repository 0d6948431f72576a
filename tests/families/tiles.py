"""Models that cut a picture into tiles, and see a small one of the whole beside them."""

from __future__ import annotations

from typing import Any

from transformers import InternVLConfig, Llama4Config, PreTrainedConfig, Qwen2Config

from tests.families import layers
from tests.families.family import NO_SPECIAL_TOKENS, PLAIN, SIZES, WINDOW, Family, Picture

_TILE = 56  # pixels: 4 tokens
_TOWER: dict[str, Any] = {
    **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"image_size": _TILE, "patch_size": 14},
}
_SIZE = {"height": _TILE, "width": _TILE}
_CHUNK = 3 * WINDOW  # longer than a picture, so that layers in chunks read keys that a crossing has turned


def internvl() -> PreTrainedConfig:
    """As InternVL3: the language model of Qwen 2.5, with dynamic NTK."""
    dynamic = PLAIN | {"rope_type": "dynamic", "factor": 2.0}
    return InternVLConfig(
        text_config=Qwen2Config(**SIZES, num_hidden_layers=2, rope_parameters=dynamic).to_dict(),
        vision_config=_TOWER | {"intermediate_size": 128, "attention_bias": True},
        image_token_id=258,
        image_seq_length=4,
        tie_word_embeddings=False,
        **NO_SPECIAL_TOKENS,
    )


def llama4_sees() -> PreTrainedConfig:
    width = {"vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64}
    return Llama4Config(
        text_config=layers.llama4().to_dict() | {"attention_chunk_size": _CHUNK},
        vision_config=_TOWER | width | {"intermediate_size": 256},
        boi_token_index=256,
        eoi_token_index=257,
        image_token_index=259,
        **NO_SPECIAL_TOKENS,
    )


FAMILIES = {
    "internvl": Family(
        "InternVLForConditionalGeneration",
        "a tower before a Qwen 2 with own dynamic NTK; images are cut into tiles",
        internvl,
        tokens=("<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        files={
            "preprocessor_config.json": {
                "image_processor_type": "GotOcr2ImageProcessor",
                "size": _SIZE,
                "crop_to_patches": True,
                "min_patches": 1,
                "max_patches": 2,
                "processor_class": "InternVLProcessor",
            },
            "processor_config.json": {"image_seq_length": 4, "processor_class": "InternVLProcessor"},
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "extra_special_tokens": {
                    "start_image_token": "<img>",
                    "end_image_token": "</img>",
                    "context_image_token": "<IMG_CONTEXT>",
                    "video_token": "<video>",
                },
            },
        },
        picture=Picture(([], []), 258, num_tokens=1 + 3 * 4 + 1, height=_TILE, width=2 * _TILE),
    ),
    "llama4_sees": Family(
        "Llama4ForConditionalGeneration",
        "a tower with a rotation of its own before a Llama 4; images are cut into tiles",
        llama4_sees,
        window=_CHUNK,
        tokens=(
            *("<|image_start|>", "<|image_end|>", "<|image|>", "<|patch|>"),
            *("<|tile_x_separator|>", "<|tile_y_separator|>"),
        ),
        files={
            "generation_config.json": {"attn_temperature_tuning": True},
            "preprocessor_config.json": {
                "image_processor_type": "Llama4ImageProcessor",
                "size": _SIZE,
                "max_patches": 2,
                "processor_class": "Llama4Processor",
            },
            "processor_config.json": {"patch_size": 14, "processor_class": "Llama4Processor"},
        },
        engine={"block_size": WINDOW},  # chunks are of whole blocks
        picture=Picture(([], []), 258, num_tokens=5 + 3 * 4, height=_TILE, width=2 * _TILE),
    ),
}
