"""Which layers rotate on vLLM's Transformers backend, by sources made up and by those of the installed transformers."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import pytest
from transformers import Cohere2Config, Exaone4Config, LlamaConfig, OlmoHybridConfig, SmolLM3Config

from posenc_runtime.vllm_adapter.checkpoint.model_code import definitions
from posenc_runtime.vllm_adapter.checkpoint.model_code.rotated_distances import tokens_seen_where_rotated
from posenc_runtime.vllm_adapter.checkpoint.model_code.transformers_layers import layers_that_rotate

SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
NUMBERS = itertools.count()
PLANTED = """
from transformers.masking_utils import create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from torch import nn

class PlantedAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config = config
        self.sliding_window = config.sliding_window
        layer_type = config.layer_types[layer_idx] if hasattr(config, "layer_types") else None
        self.is_sliding = layer_type == "sliding_attention"

    def forward(self, states, position_embeddings, **kwargs):
        query, key = self.q_norm(states), self.k_norm(states)
        if {condition}:
            query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        return ALL_ATTENTION_FUNCTIONS.get_interface("vllm", None)(self, query, key)

class PlantedLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.self_attn = PlantedAttention(config, layer_idx)

    def forward(self, states, position_embeddings=None, **kwargs):
        return self.self_attn(states, {passed}, **kwargs)

class PlantedPreTrainedModel(PreTrainedModel):
    pass

class PlantedModel(PlantedPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([PlantedLayer(config, layer_idx) for layer_idx in range(config.num_hidden_layers)])
        self.rotary_emb = PlantedRotaryEmbedding(config)

    def forward(self, states, position_ids, **kwargs):
        position_embeddings = self.rotary_emb(states, position_ids)
        for i, layer in {loop}:
            layer_type = self.config.layer_types[i]
            states = layer(states, position_embeddings={given}, **kwargs)
        return states

class PlantedForCausalLM(PlantedPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.model = PlantedModel(config)
"""
# As transformers has them: the condition of Kolibri 1, and the loop of Lara 4 Mini.
KOLIBRI = {"condition": "self.sliding_window is None or self.is_sliding"}
LARA = {
    "condition": "position_embeddings is not None",
    "given": 'position_embeddings if layer_type == "sliding_attention" else None',
}
PLAIN = {
    "passed": "position_embeddings=position_embeddings",
    "loop": "enumerate(self.layers[: self.config.num_hidden_layers])",
    "given": "position_embeddings",
}


@pytest.fixture
def plant(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def planted(**changed: str) -> str:
        name = f"modeling_planted_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(PLANTED.format(**(PLAIN | changed)))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(definitions, "class_in_transformers", lambda _: (name, "PlantedForCausalLM"))
        return f"{name}ForCausalLM"  # vLLM does not know it, so that it would run on the Transformers backend

    return planted


def config(*types: str, **said: Any) -> LlamaConfig:
    return LlamaConfig(**{"num_hidden_layers": len(types), "layer_types": list(types), "sliding_window": 512} | said)


@pytest.mark.parametrize("changed", [KOLIBRI, LARA], ids=["kolibri 1", "lara 4 mini"])
def test_only_layers_with_a_window_rotate(plant: Any, changed: dict[str, str]) -> None:
    architecture, of = plant(**changed), config(SLIDING, SLIDING, FULL, SLIDING)
    assert layers_that_rotate(architecture, of, 4) == [0, 1, 3]
    assert tokens_seen_where_rotated(architecture, of) == 512


def test_a_layer_of_another_kind_gets_nothing_to_rotate_by(plant: Any) -> None:
    assert layers_that_rotate(plant(**LARA), config(LINEAR, SLIDING, LINEAR, FULL, SLIDING), 5) == [1, 4]


def test_without_a_window_every_layer_rotates_whose_condition_says_so(plant: Any) -> None:
    assert layers_that_rotate(plant(**KOLIBRI), config(FULL, FULL, sliding_window=None), 2) == [0, 1]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"condition": "True"}, id="no condition"),
        pytest.param({"condition": "self.training or states"}, id="a condition that the source does not tell"),
        pytest.param(LARA | {"given": "position_embeddings"}, id="cosines and sines for all"),
        pytest.param(LARA | {"given": "choose(layer_type, position_embeddings)"}, id="what a function gives"),
        pytest.param(LARA | {"passed": "position_embeddings"}, id="an argument by its place"),
        pytest.param(LARA | {"passed": "position_embeddings=self.own_embeddings"}, id="a layer with its own"),
        pytest.param(LARA | {"loop": "enumerate(self.layers[1:])"}, id="a loop that begins later"),
        pytest.param(LARA | {"loop": "enumerate(self.layers, 1)"}, id="a loop that counts from 1"),
        pytest.param(LARA | {"loop": "zip(numbers, self.layers)"}, id="a loop with other numbers"),
    ],
)
def test_what_the_source_does_not_tell_counts_as_a_layer_that_rotates(plant: Any, changed: dict[str, str]) -> None:
    architecture, of = plant(**changed), config(SLIDING, FULL)
    assert layers_that_rotate(architecture, of, 2) == [0, 1]
    assert tokens_seen_where_rotated(architecture, of) is None


def test_where_transformers_does_not_have_the_code_every_layer_counts() -> None:
    assert layers_that_rotate("NobodyHeardOfForCausalLM", config(SLIDING, FULL), 2) == [0, 1]


MIXED: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": [SLIDING, SLIDING, SLIDING, FULL]}


@pytest.mark.parametrize(
    ("architecture", "of", "numbers"),
    [
        ("Exaone4ForCausalLM", Exaone4Config(**MIXED, sliding_window=4096), [0, 1, 2]),
        ("Cohere2ForCausalLM", Cohere2Config(**MIXED, sliding_window=4096), [0, 1, 2]),
        ("SmolLM3ForCausalLM", SmolLM3Config(num_hidden_layers=8, no_rope_layers=[1, 1, 1, 0] * 2), [0, 1, 2, 4, 5, 6]),
        (
            "OlmoHybridForCausalLM",
            OlmoHybridConfig(num_hidden_layers=4, layer_types=[LINEAR, LINEAR, LINEAR, FULL]),
            [3],
        ),
        ("LlamaForCausalLM", LlamaConfig(num_hidden_layers=2), [0, 1]),
    ],
)
def test_layers_of_published_models_rotate_as_their_authors_say(architecture: str, of: Any, numbers: list[int]) -> None:
    assert layers_that_rotate(architecture, of, of.num_hidden_layers) == numbers
