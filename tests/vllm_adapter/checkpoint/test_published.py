"""What is read in the configurations of published checkpoints: which of their rotations is scaled, and from where."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest
from transformers import PreTrainedConfig
from vllm.transformers_utils import config as vllm_config

from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint, read_checkpoint
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from tests import model_configs
from tests.model_configs import OWN_CODE


def spec(rotary_dim: int, rope_theta: float, trained: int, num_rotated_pairs: int | None = None) -> RotarySpec:
    return RotarySpec(
        rotary_dim=rotary_dim,
        rope_theta=rope_theta,
        original_max_position_embeddings=trained,
        num_rotated_pairs=num_rotated_pairs,
    )


# What its rotation is, by which method, with which parameters, and whether it has rotations that are not scaled.
PUBLISHED: dict[str, tuple[RotarySpec, str, dict[str, Any], bool]] = {
    # A rope for each type of layer: that of full attention is scaled.
    "GEMMA_3_1B": (spec(256, 1e6, 32768), "default", {}, True),
    "GEMMA_3_27B": (spec(128, 1e6, 131072), "linear", {"factor": 8.0}, True),
    "GEMMA_4": (spec(512, 1e6, 131072, num_rotated_pairs=64), "default", {}, True),
    "LAGUNA": (spec(64, 5e5, 131072), "default", {}, True),
    "PLAMO_3": (spec(128, 1e6, 4096), "default", {}, True),
    "MIMO_V2": (spec(64, 5e6, 262144), "default", {}, True),
    "STEP_3_5": (
        spec(64, 5e6, 262144),
        "llama3",
        {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0, "old_context_len": 131072},
        True,
    ),
    "OLMO_3": (
        spec(128, 5e5, 65536),
        "yarn",
        {
            **{"factor": 8.0, "old_context_len": 8192, "beta_fast": 32, "beta_slow": 1},
            "attention_factor": 1.2079441541679836,
        },
        True,
    ),
    # A rotation of their own that is a scaled one.
    "GPT_OSS": (
        spec(64, 1.5e5, 131072),
        "yarn",
        {"factor": 32.0, "old_context_len": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        False,
    ),
    "DEEPSEEK_V3": (
        spec(64, 1e4, 163840),
        "yarn",
        {
            **{"factor": 40, "old_context_len": 4096, "beta_fast": 32, "beta_slow": 1},
            **{"mscale": 1.0, "mscale_all_dim": 1.0},
        },
        False,
    ),
    "MINISTRAL_3": (
        spec(128, 1e6, 262144),
        "yarn",
        {
            **{"factor": 16.0, "old_context_len": 16384, "beta_fast": 32.0, "beta_slow": 1.0},
            **{"mscale": 1.0, "mscale_all_dim": 1.0},
        },
        True,
    ),
    "INTERNLM_2_5": (spec(128, 1e6, 32768), "dynamic", {"factor": 2.0}, False),
    "HUNYUAN_7B": (spec(128, 1e4, 32768), "dynamic", {"factor": 1.0, "alpha": 1000.0}, False),
    # Positions on three axes, and a vision tower with a rotation of its own.
    "QWEN_2_5_VL": (spec(128, 1e6, 128000), "default", {}, True),
    "QWEN_3_5": (spec(64, 1e7, 262144), "default", {}, True),
}
WINDOWS = {
    **{"GEMMA_3_1B": 512, "GEMMA_3_27B": 1024, "GEMMA_4": 512, "LAGUNA": 512, "MIMO_V2": 128, "STEP_3_5": 512},
    **{"OLMO_3": 4096, "GPT_OSS": 128},
}


SEEING = ("GEMMA_3_27B", "MINISTRAL_3", "QWEN_2_5_VL", "QWEN_3_5")


def read(name: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> Checkpoint:
    said = getattr(model_configs, name) | changed
    if said["model_type"] in OWN_CODE:
        monkeypatch.setitem(vllm_config._CONFIG_REGISTRY, said["model_type"], PreTrainedConfig)
    (folder / "config.json").write_text(json.dumps(said))
    return read_checkpoint(str(folder), {})


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_scaled_rotation_of_a_published_checkpoint_is_read_as_it_was_trained(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read(name, tmp_path, monkeypatch)
    own, rope_type, parameters, has_other_rotations = PUBLISHED[name]
    assert found == Checkpoint(
        max_position_embeddings=own.original_max_position_embeddings,
        spec=own,
        rope_type=rope_type,
        parameters=parameters,
        architecture=getattr(model_configs, name)["architectures"][0],
        sliding_window=WINDOWS.get(name),
        has_other_rotations=has_other_rotations,
        text_part=("text_config",) if name in SEEING else (),
    )


GPT_J = {
    **{"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28},
    **{"n_positions": 2048, "rotary_dim": 64},
}
GLM_4_9B = {
    **{"architectures": ["ChatGLMModel"], "model_type": "chatglm", "hidden_size": 4096, "num_attention_heads": 32},
    **{"kv_channels": 128, "multi_query_group_num": 2, "num_layers": 40, "padded_vocab_size": 151552},
    **{"original_rope": True, "rope_ratio": 500, "seq_length": 131072},
}


@pytest.mark.parametrize(
    ("said", "own"), [(GPT_J, spec(64, 1e4, 2048)), (GLM_4_9B, spec(64, 5e6, 131072))], ids=["GPT-J", "GLM-4-9B"]
)
def test_what_older_models_rotate_is_found_in_keys_of_their_own(
    said: dict[str, Any], own: RotarySpec, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(said))
    found = read_checkpoint(str(tmp_path), {})
    assert (found.spec, found.rope_type) == (own, "default")


def test_a_length_before_the_tuning_is_not_the_trained_length(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some checkpoints state the length that YaRN began from, and were trained on its factor times as much."""
    found = read("GPT_OSS", tmp_path, monkeypatch, max_position_embeddings=4096)
    own, *_ = PUBLISHED["GPT_OSS"]
    assert (found.max_position_embeddings, found.spec) == (131072, own)


def test_layer_types_that_all_have_one_rope_leave_nothing_unscaled(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6}
    both = {"full_attention": rope, "sliding_attention": rope}
    found = read("GEMMA_3_1B", tmp_path, monkeypatch, rope_parameters=both)
    assert not found.has_other_rotations


def test_ropes_for_types_of_layers_none_of_which_sees_the_whole_request_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6}
    ropes = {"chunked_attention": rope, "sliding_attention": rope}
    rule = r"^rope_parameters must have a set for full_attention, which is scaled, got one for each of chunked_att.*, s"
    with pytest.raises(Unsupported, match=rule):
        read("PLAMO_3", tmp_path, monkeypatch, rope_parameters=ropes)


@pytest.mark.parametrize(
    ("layer_types", "expected"),
    [
        (["sliding_attention", "full_attention"], dataclasses.replace(PUBLISHED["STEP_3_5"][0], rope_theta=2e6)),
        (None, dataclasses.replace(PUBLISHED["STEP_3_5"][0], rope_theta=1e4, rotary_dim=128)),
    ],
    ids=["second-layer", "first-layer"],
)
def test_of_lists_over_layers_the_first_layer_that_sees_all_counts(
    layer_types: list[str] | None, expected: RotarySpec, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {"rope_theta": [1e4, 2e6], "partial_rotary_factors": [1.0, 0.5], "num_hidden_layers": 2}
    found = read("STEP_3_5", tmp_path, monkeypatch, layer_types=layer_types, **changed)
    assert found.spec == expected
    assert found.has_other_rotations
