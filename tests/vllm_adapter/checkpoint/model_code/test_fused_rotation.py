"""Models whose kernels rotate from the table of cosines and sines: refused by name, or served at scale 1 alone."""

from __future__ import annotations

import itertools
import pathlib
import types
from typing import Any

import pytest
from transformers import LlamaConfig
from vllm.model_executor.models.registry import _MULTIMODAL_MODELS, _TEXT_GENERATION_MODELS, ModelRegistry

from posenc_runtime.kv.deployment import UNROTATED
from posenc_runtime.vllm_adapter.checkpoint import checkpoint as reading
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.refusals import engine
from posenc_runtime.vllm_adapter.settings.completion import complete
from posenc_runtime.vllm_adapter.settings.section import AttentionSettings, ScalingSettings, SettingRefused

SLIDING, FULL = "sliding_attention", "full_attention"
NUMBERS = itertools.count()
# As vLLM's Beam has it: one kernel norms and rotates, and the layers that see all have no embedding.
PLANTED = """
from torch import nn
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.models.utils import extract_layer_index

class Layer(nn.Module):
    def __init__(self, config, cache_config, prefix: str = ""):
        super().__init__()
        self.layer_id = extract_layer_index(prefix)
        is_sliding = config.layer_types[self.layer_id] == "sliding_attention"
        self.disable_rope = not ({rotates})
        if self.disable_rope:
            self.rotary_emb = None
        else:
            self.rotary_emb = get_rope(32, max_position=64)
        window = config.sliding_window if is_sliding else None
        self.attn = Attention(1, 32, per_layer_sliding_window=window, cache_config=cache_config)

    def forward(self, positions, q, k, v):
        rope = self.rotary_emb
        q, k = norm_and_rotate(q, k, positions, rope.cos_sin_cache if rope is not None else None)
        return {attends}

class Model(nn.Module):
    def __init__(self, config, cache_config):
        if cache_config is not None:
            cache_config.sliding_window = {common}
        self.layers = [Layer(config, cache_config, prefix=f"layers.{{number}}") for number in range(2)]

class PlantedForCausalLM(nn.Module):
    def __init__(self, config, cache_config):
        self.model = Model(config, cache_config)
"""
LIKE_BEAM = {"rotates": "is_sliding", "attends": "self.attn(q, k, v)", "common": "None"}


@pytest.fixture
def plant(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def planted(**changed: str) -> str:
        name = f"planted_fused_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(PLANTED.format(**(LIKE_BEAM | changed)))
        monkeypatch.syspath_prepend(tmp_path)
        registered = types.SimpleNamespace(module_name=name, class_name="PlantedForCausalLM")
        monkeypatch.setitem(ModelRegistry.models, f"{name}ForCausalLM", registered)
        return f"{name}ForCausalLM"

    return planted


def config(*architectures: str, **said: Any) -> LlamaConfig:
    keys = {"num_hidden_layers": 2, "layer_types": [SLIDING, FULL], "sliding_window": 64} | said
    return LlamaConfig(architectures=list(architectures), max_position_embeddings=512, **keys)


def plan(found: reading.Checkpoint, max_model_len: int | None = None, **scaling: Any) -> Any:
    settings = ScalingSettings.model_validate(scaling)
    return complete(settings, AttentionSettings(), found, model="planted", max_model_len=max_model_len)


def engine_config(of: LlamaConfig, deployment: Any) -> Any:
    model = types.SimpleNamespace(hf_config=of, hf_text_config=of, architectures=of.architectures)
    return engine._stays_stock(model, deployment)


def test_where_every_rotating_layer_has_a_window_a_fused_kernel_is_served_at_scale_1(plant: Any) -> None:
    of = config(plant())
    found = reading._said_by(of)
    assert found.window_where_rotated == 64
    said = plan(found, 4096, rope_type="auto")
    assert (said.deployment.rope_type, said.deployment.scales) == (UNROTATED, (1.0,))
    assert (said.deployment.original_max_position_embeddings, said.deployment.max_model_len) == (512, 4096)
    assert said.auto_reason.startswith("no layer that rotates sees more than 64 tokens")
    assert engine_config(of, said.deployment)


def test_without_a_section_a_fused_kernel_is_served_up_to_the_trained_length(plant: Any) -> None:
    said = plan(reading._said_by(config(plant())))
    assert (said.deployment.rope_type, said.deployment.max_model_len) == (UNROTATED, 512)


@pytest.mark.parametrize(
    "scaling",
    [
        pytest.param({"rope_type": "yarn", "scales": [1, 2]}, id="another scale"),
        pytest.param({"rope_type": "auto", "original_max_position_embeddings": 32}, id="trained for less"),
    ],
)
def test_a_fused_kernel_with_another_scale_is_refused_by_name(plant: Any, scaling: dict[str, Any]) -> None:
    architecture = plant()
    with pytest.raises(SettingRefused, match=rf"^model: posenc does not serve {architecture}: planted_fused_\d+ of"):
        plan(reading._said_by(config(architecture)), **scaling)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"rotates": "True"}, {}, id="a layer that sees all rotates"),
        pytest.param({"rotates": "True"}, {"layer_types": [FULL, FULL]}, id="no layer has a window"),
        pytest.param({"attends": "attend_by_kernel(q, k, v, self.attn.layer_name)"}, {}, id="a kernel of its own"),
        pytest.param({"common": "8"}, {}, id="another window for all layers"),
        pytest.param({}, {"sliding_window": 513}, id="a window past the trained length"),
    ],
)
def test_a_fused_kernel_that_may_rotate_long_distances_is_refused_by_name(
    plant: Any, changed: dict[str, str], said: dict[str, Any]
) -> None:
    architecture = plant(**changed)
    with pytest.raises(Unsupported, match=rf"^posenc does not serve {architecture}: planted_fused_\d+ of vLLM reads"):
        reading._said_by(config(architecture, **said))


def test_a_model_with_images_is_refused_even_if_its_text_has_windows(plant: Any) -> None:
    text = config()
    whole = LlamaConfig(architectures=[plant()])
    whole.text_config = text
    whole.get_text_config = lambda *_, **__: text
    with pytest.raises(Unsupported, match=r"^posenc does not serve planted_fused"):
        reading._said_by(whole)


# New in vLLM 0.33. What their own configurations say is not needed to refuse them.
@pytest.mark.parametrize(
    "architecture",
    ["FlintForCausalLM", "Step5ForCausalLM", "Step5ForConditionalGeneration", "MuseSparkForConditionalGeneration"],
)
def test_these_stay_refused_by_name(architecture: str) -> None:
    if architecture not in _TEXT_GENERATION_MODELS.keys() | _MULTIMODAL_MODELS.keys():
        pytest.skip("this vLLM does not have it")
    text = config(architecture, no_rope_layer_indices=[1], layer_rope_theta=[1e4, 0.0])
    whole = text
    if architecture in _MULTIMODAL_MODELS:
        whole = LlamaConfig(architectures=[architecture])
        whole.get_text_config = lambda *_, **__: text
    with pytest.raises(Unsupported, match=rf"^posenc does not serve {architecture}: vllm\.models\..* reads the table"):
        reading._said_by(whole)


def test_beam_is_served_at_scale_1_alone() -> None:
    if "BeamForCausalLM" not in _TEXT_GENERATION_MODELS:
        pytest.skip("this vLLM does not have it")
    found = reading._said_by(config("BeamForCausalLM", head_dim=128))
    assert found.window_where_rotated == 64
    assert plan(found, 4096, rope_type="auto").deployment.scales == (1.0,)
    with pytest.raises(SettingRefused, match=r"^model: posenc does not serve BeamForCausalLM: vllm\.models\.beam"):
        plan(found, rope_type="yarn", scales=[1, 2])
