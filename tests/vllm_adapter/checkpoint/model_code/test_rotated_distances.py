"""What a query sees in the layers that rotate, against configurations of which it was worked out by hand."""

from __future__ import annotations

import itertools
import pathlib
import textwrap
import types
from typing import Any

import pytest
from transformers import (
    AfmoeConfig,
    Cohere2Config,
    Cohere2MoeConfig,
    CohereConfig,
    Exaone4Config,
    ExaoneMoeConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    Olmo3Config,
    Phi3Config,
    Qwen3Config,
    SmolLM3Config,
    Starcoder2Config,
)
from vllm.model_executor.models.registry import (
    _MULTIMODAL_MODELS,
    _TEXT_GENERATION_MODELS,
    ModelRegistry,
)

from posenc_runtime.vllm_adapter.checkpoint.model_code.rotated_distances import tokens_seen_where_rotated
from tests.model_configs import LAGUNA, MIMO_V2, PLAMO_3, STEP_3_5

SLIDING, FULL = "sliding_attention", "full_attention"
MIXED: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": [SLIDING, SLIDING, SLIDING, FULL]}
ALL_SEE_ALL: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": [FULL] * 4}
DENSE_FIRST = {"layer_types": [FULL, SLIDING, SLIDING, FULL], "mlp_layer_types": ["dense", *["sparse"] * 3]}


@pytest.mark.parametrize(
    ("architecture", "config", "tokens"),
    [
        # Rotate only where they have a window, or a chunk.
        ("Exaone4ForCausalLM", Exaone4Config(**MIXED, sliding_window=4096), 4096),
        ("ExaoneMoeForCausalLM", ExaoneMoeConfig(**MIXED, sliding_windows=[128, 128, 128, None]), 128),
        ("Cohere2ForCausalLM", Cohere2Config(**MIXED, sliding_window=4096), 4097),  # and the token itself
        ("Cohere2VisionForConditionalGeneration", Cohere2Config(**MIXED, sliding_window=4096), 4097),
        ("AfmoeForCausalLM", AfmoeConfig(**MIXED, sliding_window=2048), 2048),
        ("Llama4ForCausalLM", Llama4TextConfig(num_hidden_layers=4, attention_chunk_size=8192), 8192),
        ("Llama4ForConditionalGeneration", Llama4TextConfig(num_hidden_layers=8, attention_chunk_size=8192), 8192),
        ("Llama4ForCausalLM", Llama4TextConfig(no_rope_layers=[1] * 48, attention_chunk_size=8192), 8192),
        # Rotate in all layers, of which each has a window: Mistral 0.1, Phi-3 for 4k, StarCoder 2.
        ("MistralForCausalLM", MistralConfig(sliding_window=4096), 4096),
        ("Phi3ForCausalLM", Phi3Config(sliding_window=2047), 2047),
        ("Starcoder2ForCausalLM", Starcoder2Config(sliding_window=4096), 4096),
        ("LlamaForCausalLM", LlamaConfig(num_hidden_layers=2, layer_types=[SLIDING] * 2, sliding_window=64), 64),
    ],
)
def test_what_a_query_sees_where_a_model_rotates(architecture: str, config: Any, tokens: int) -> None:
    assert tokens_seen_where_rotated(architecture, config) == tokens


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        # Layers that see all rotate, too.
        ("Gemma2ForCausalLM", Gemma2Config()),
        ("Gemma3ForCausalLM", Gemma3TextConfig()),
        ("GptOssForCausalLM", GptOssConfig()),
        ("Olmo3ForCausalLM", Olmo3Config()),
        ("Plamo3ForCausalLM", types.SimpleNamespace(**PLAMO_3)),
        ("MiMoV2ForCausalLM", types.SimpleNamespace(**MIMO_V2)),
        ("LagunaForCausalLM", types.SimpleNamespace(**LAGUNA)),
        ("Step3p5ForCausalLM", types.SimpleNamespace(**STEP_3_5)),
        ("LlamaForCausalLM", LlamaConfig(**MIXED, sliding_window=64)),
        ("Cohere2MoeForCausalLM", Cohere2MoeConfig(num_hidden_layers=4, **DENSE_FIRST)),
        # Those that rotate see all.
        ("SmolLM3ForCausalLM", SmolLM3Config()),
        ("Llama4ForCausalLM", Llama4TextConfig(attention_chunk_size=None)),
        # No layer has a window.
        ("Exaone4ForCausalLM", Exaone4Config(**ALL_SEE_ALL, sliding_window=None)),
        ("Exaone4ForCausalLM", Exaone4Config(**ALL_SEE_ALL, sliding_window=4096)),
        ("CohereForCausalLM", CohereConfig()),
        ("Qwen3ForCausalLM", Qwen3Config()),
        ("Qwen3ForCausalLM", Qwen3Config(sliding_window=4096, use_sliding_window=False)),
        ("MistralForCausalLM", MistralConfig(sliding_window=None)),
        ("MistralForCausalLM", MistralConfig(sliding_window=0)),
    ],
)
def test_where_a_layer_that_rotates_sees_all_there_is_no_bound(architecture: str, config: Any) -> None:
    assert tokens_seen_where_rotated(architecture, config) is None


# K-EXAONE's key of windows, Muse Glimmer and Beam are younger than the oldest vLLM that is served.
NOT_IN_EACH_VLLM = {
    "BeamForCausalLM",
    *("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    *("MuseGlimmerForCausalLM", "MuseGlimmerForConditionalGeneration"),
}


@pytest.mark.slow
@pytest.mark.release
def test_of_all_architectures_these_may_leave_layers_that_see_all_without_a_rotation() -> None:
    keys = {"sliding_window": 64, "attention_chunk_size": 64, "no_rope_layers": [1, 1, 1, 0]}
    config = LlamaConfig(**MIXED, **keys, mlp_layer_types=["dense"] * 4)
    found = {
        architecture
        for architecture in (*_TEXT_GENERATION_MODELS, *_MULTIMODAL_MODELS)
        if tokens_seen_where_rotated(architecture, config) is not None
    }
    assert found - NOT_IN_EACH_VLLM == {
        *("AfmoeForCausalLM", "CohereForCausalLM", "Cohere2ForCausalLM", "Exaone4ForCausalLM"),
        *("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    }


NUMBERS = itertools.count()
PLANTED = """
from torch import nn
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.rotary_embedding import get_rope

class Layer(nn.Module):
    def __init__(self, config, cache_config, layer_idx, is_draft: bool = False, prefix: str = ""):
        super().__init__()
        is_sliding = config.layer_types[layer_idx] == "sliding_attention"
        self.window = config.sliding_window if is_sliding else None
{set_up}
        self.rotary_emb = get_rope(32, max_position=64)
        self.attn = Attention(1, 32, per_layer_sliding_window=self.window, cache_config=cache_config)

    def forward(self, positions, q, k):
        if {condition}:
            q, k = self.rotary_emb(positions, q, k)
        return self.attn(q, k, k)

    def load(self):
        self.loaded = True

class Model(nn.Module):
    def __init__(self, config, layer_type: type = None, **others):
{built}

class PlantedForCausalLM(nn.Module):
    def __init__(self, config):
        self.model = Model(config)
"""
BUILT = "self.layers = [Layer(config, None, index) for index in range(2)]"


def seen_in_planted(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, condition: str, set_up: str, built: str
) -> int | None:
    name, indent = f"planted_{next(NUMBERS)}", " " * 8
    source = PLANTED.format(
        condition=condition, set_up=textwrap.indent(set_up, indent), built=textwrap.indent(built, indent)
    )
    compile(source, name, "exec")
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    registered = types.SimpleNamespace(module_name=name, class_name="PlantedForCausalLM")
    architecture = f"{name}ForCausalLM"
    monkeypatch.setitem(ModelRegistry.models, architecture, registered)
    return tokens_seen_where_rotated(
        architecture, LlamaConfig(num_hidden_layers=2, layer_types=[SLIDING, FULL], sliding_window=64)
    )


@pytest.mark.parametrize(
    ("condition", "set_up", "built"),
    [
        ("self.window", "", BUILT),
        ("self.window is not None", "", BUILT),
        ("not self.sees_all", "self.sees_all = self.window is None", BUILT),
        (
            "self.rotary_emb and self.local",
            "self.local = config.layer_types[layer_idx] in ('sliding_attention',)",
            BUILT,
        ),
        ("self.local", "self.local = bool(getattr(config, 'absent', False)) or layer_idx % 2 == 0", BUILT),
        ("self.window or self.is_draft", "self.is_draft = is_draft", BUILT),
        ("self.local", "if layer_idx < 1:\n    self.local: bool = True\nelse:\n    self.local = False", BUILT),
        ("self.local", "self.local = isinstance(config, LlamaConfig) and not layer_idx", BUILT),
        ("self.window", "for name in prefix:\n    self.other = name", BUILT),
    ],
)
def test_a_condition_is_computed_from_the_configuration(
    condition: str, set_up: str, built: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen_in_planted(tmp_path, monkeypatch, condition, set_up, built) == 64


@pytest.mark.parametrize(
    ("condition", "set_up", "built"),
    [
        pytest.param("not self.window", "", BUILT, id="rotates where it sees all"),
        pytest.param("self.window or layer_idx", "", BUILT, id="a variable of the method"),
        pytest.param(
            "self.window or self.local", "self.local = look_up(config)", BUILT, id="a function that is not followed"
        ),
        pytest.param("self.window or self.local", "self.local = config.absent", BUILT, id="a key that is not there"),
        pytest.param(
            "self.window or self.local",
            "self.local = False\nif cache_config:\n    self.local = True",
            BUILT,
            id="may be set",
        ),
        pytest.param(
            "self.window or self.local",
            "self.local = False\nfor name in cache_config:\n    self.local = name",
            BUILT,
            id="set in a loop",
        ),
        pytest.param("self.window or self.loaded", "self.loaded = False", BUILT, id="set after the constructor"),
        pytest.param("self.window", "if cache_config:\n    self.window = 8", BUILT, id="the window may be another"),
        pytest.param("self.window", "if cache_config:\n    return", BUILT, id="the constructor may end early"),
        pytest.param("self.window", "config.sliding_window = 8", BUILT, id="sets the configuration"),
        pytest.param(
            "self.window", "self.second = Attention(1, 32, per_layer_sliding_window=8)", BUILT, id="attends twice"
        ),
        pytest.param(
            "self.window or self.is_draft",
            "self.is_draft = is_draft",
            "self.layers = [Layer(config, None, 0, is_draft=True)]",
            id="an argument that a caller gives",
        ),
        pytest.param(
            "self.window or self.is_draft",
            "self.is_draft = is_draft",
            "self.layers = [Layer(config, None, 0, True)]",
            id="an argument that a caller gives by its place",
        ),
        pytest.param(
            "self.window or self.is_draft",
            "self.is_draft = is_draft",
            "self.layers = [Layer(config, None, 0, **others)]",
            id="arguments that are not named",
        ),
        pytest.param(
            "self.window or self.is_draft",
            "self.is_draft = is_draft",
            "self.layers = make_layers(Layer)",
            id="a class that is called elsewhere",
        ),
    ],
)
def test_what_the_source_does_not_tell_is_no_bound(
    condition: str, set_up: str, built: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen_in_planted(tmp_path, monkeypatch, condition, set_up, built) is None
