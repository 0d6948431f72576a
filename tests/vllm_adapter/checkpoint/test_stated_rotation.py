"""What is wrong in a config.json is refused under its name there, and what transformers takes is taken."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_checkpoint
from posenc_runtime.vllm_adapter.contract.errors import Unsupported

QWEN_3: dict[str, Any] = {
    **{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 320},
    **{"max_position_embeddings": 131072, "rope_theta": 1000000},
}
YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}
LLAMA_3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 8192,
}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}


def read(folder: pathlib.Path, said: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(QWEN_3 | said))
    return read_checkpoint(str(folder), {})


def scaled(**changed: Any) -> dict[str, Any]:
    return {"rope_scaling": YARN | changed}


REFUSED = {
    "factor below 1": (scaled(factor=0.5), "rope_scaling.factor of config.json must be at least 1, got 0.5"),
    "factor in quotes": (
        scaled(factor="4.0"),
        'rope_scaling.factor of config.json must be a finite number, got "4.0": write it without quotes',
    ),
    "a number in quotes, which transformers compares": (
        scaled(beta_fast="32"),
        'rope_scaling.beta_fast of config.json must be a finite number, got "32": write it without quotes',
    ),
    "a truth value in quotes": (
        scaled(truncate="false"),
        'rope_scaling.truncate of config.json must be true or false, got "false": write it without quotes',
    ),
    "a length that is not whole": (
        scaled(original_max_position_embeddings=32768.5),
        "rope_scaling.original_max_position_embeddings of config.json must be a whole number, got 32768.5: correct it",
    ),
    "factor null": (
        {"rope_scaling": {"type": "linear", "factor": None}},
        "rope_scaling.factor of config.json must be a finite number, got null: correct it there",
    ),
    "no factor": (
        {"rope_scaling": {"type": "linear"}},
        "rope_scaling.factor of config.json must be given where rope_type is linear: add it there",
    ),
    "llama3 in quotes": (
        {"rope_scaling": LLAMA_3 | {"factor": "8.0"}},
        'rope_scaling.factor of config.json must be a finite number, got "8.0": write it without quotes',
    ),
    "llama3 without its length": (
        {"rope_scaling": {key: value for key, value in LLAMA_3.items() if key != "original_max_position_embeddings"}},
        "rope_scaling.original_max_position_embeddings of config.json must be given where rope_type is llama3: add it",
    ),
    "base in quotes": (
        {"rope_theta": "1000000"},
        'rope_theta of config.json must be a finite number, got "1000000": write it without quotes',
    ),
    "base in the newer section": (
        {"rope_theta": None, "rope_parameters": YARN | {"rope_theta": "1e6"}},
        'rope_parameters.rope_theta of config.json must be a finite number, got "1e6": write it without quotes',
    ),
    "a factor of a pair": (
        {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 4096, "long_factor": [1.0] * 15 + ["2"]}},
        "rope_scaling.long_factor of config.json must be a list, each a finite number, got [1.0, ",
    ),
    "no mapping": ({"rope_scaling": "yarn"}, 'rope_scaling of config.json must be a mapping, got "yarn": correct it'),
    "length in quotes": (
        {"max_position_embeddings": "131072"},
        'max_position_embeddings of config.json must be a whole number of at least 1, got "131072": write it without',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_is_refused_under_the_name_of_its_key_and_as_it_is_written(name: str, tmp_path: pathlib.Path) -> None:
    said, rule = REFUSED[name]
    with pytest.raises(Unsupported) as refused:
        read(tmp_path, said)
    assert str(refused.value).startswith(rule)


def test_the_text_of_a_multimodal_model_is_looked_at_too(tmp_path: pathlib.Path) -> None:
    text = {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": "2"}}
    written = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(Unsupported, match=r"^rope_scaling\.factor of config\.json must be a finite number, got \"2\""):
        read_checkpoint(str(tmp_path), {})


@pytest.mark.parametrize(("said", "before"), [(YARN, 32768), (LLAMA_3, 8192)], ids=["yarn", "llama3"])
def test_a_length_is_taken_as_a_whole_number_where_a_float_is_written(
    said: dict[str, Any], before: int, tmp_path: pathlib.Path
) -> None:
    whole = read(tmp_path, {"rope_scaling": said})
    written = read(tmp_path, {"rope_scaling": said | {"original_max_position_embeddings": float(before)}})
    assert written == whole and written.parameters["old_context_len"] == before
    assert type(written.parameters["old_context_len"]) is int


@pytest.mark.parametrize("said", [{"factor": 4.0}, {"rope_type": "default", "factor": 4.0}], ids=["alone", "default"])
def test_a_factor_that_no_method_reads_scales_nothing(said: dict[str, Any], tmp_path: pathlib.Path) -> None:
    assert read(tmp_path, {"rope_scaling": said}) == read(tmp_path, {})
