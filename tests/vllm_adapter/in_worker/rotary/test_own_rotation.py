"""How each rotary class of vLLM rotates by itself is read off it, and is scale 1 of what takes its place."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.rotary_embedding.ntk_scaling_rope import NTKScalingRotaryEmbedding

from posenc_runtime.encodings.scaling import from_parameters, own
from posenc_runtime.encodings.spec import Frequencies, RotarySpec
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.in_worker.rotary import building, registration
from posenc_runtime.vllm_adapter.in_worker.rotary.own_rotation import own_rotation, own_table
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE
from tests.tolerance import COS_SIN_OF_TURNS, INV_FREQ_BLENDED_RELATIVE, INV_FREQ_RELATIVE, TABLE_ANGLE_RELATIVE

HEAD_DIM, SERVED = 32, 256
THETA = {"rope_theta": 1e4}
YARN = THETA | {"factor": 4.0, "original_max_position_embeddings": 64}
DEEPSEEK = {"rope_type": "deepseek_yarn", "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 32, "beta_slow": 1}
LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
# The rope parameters that make vLLM take each class, and the method that the checkpoint then has.
CLASSES = {
    "RotaryEmbedding": (THETA | {"rope_type": "default"}, "default"),
    "Llama3RotaryEmbedding": (THETA | LLAMA_3 | {"rope_type": "llama3"}, "llama3"),
    "YaRNScalingRotaryEmbedding": (YARN | {"rope_type": "yarn", "truncate": False}, "yarn"),
    "DeepseekScalingRotaryEmbedding": (YARN | DEEPSEEK, "yarn"),
    "LinearScalingRotaryEmbedding": (THETA | {"rope_type": "linear", "factor": 8.0}, "linear"),
    "DynamicNTKScalingRotaryEmbedding": (THETA | {"rope_type": "dynamic", "factor": 4.0}, "dynamic"),
    "DynamicNTKAlphaRotaryEmbedding": (THETA | {"rope_type": "dynamic", "alpha": 1000.0}, "dynamic"),
    "Gemma4RotaryEmbedding": (THETA | {"rope_type": "proportional", "partial_rotary_factor": 0.25}, "default"),
    "MRotaryEmbedding": (THETA | {"rope_type": "default", "mrope_section": [8, 4, 4]}, "default"),
    "NTKScalingRotaryEmbedding": (THETA | {"rope_type": "ntk", "factor": 4.0}, None),
}
SCALED = [name for name, (_, method) in CLASSES.items() if method is not None]


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    registration.register()
    for name, value in (("rotaries", []), ("model", None)):
        monkeypatch.setattr(STATE, name, value)
    monkeypatch.setattr(building, "checked_deployment", lambda: None)


def built(rope_parameters: dict[str, Any], model_config: Any = None) -> Any:
    """As a model gets it from vLLM. Each has another engine, because vLLM keeps what it has built."""
    engine = VllmConfig()
    engine.model_config = model_config
    with set_current_vllm_config(engine):
        return rotary_embedding.get_rope(
            HEAD_DIM, SERVED, is_neox_style=True, rope_parameters=rope_parameters, dtype=torch.float32
        )


def stock(module: Any) -> Any:
    """The class of vLLM that a module is in the place of."""
    return type(module).__mro__[1]


def test_every_class_that_is_replaced_has_a_case_here() -> None:
    assert {rotary_class.__name__ for rotary_class in registration.substitutes()} == CLASSES.keys()


def table_of(frequencies: Frequencies, num_rows: int) -> Tensor:
    angles = torch.arange(num_rows, dtype=torch.float64)[:, None] * frequencies.inv_freq.double()
    return frequencies.attention_factor * torch.cat((angles.cos(), angles.sin()), -1)


@pytest.mark.parametrize("name", CLASSES)
def test_one_frequency_for_each_pair_and_a_factor_give_the_whole_table_of_a_class(name: str) -> None:
    module = built(CLASSES[name][0])
    assert stock(module).__name__ == name
    found = own_rotation(stock(module), module)
    assert found is not None and found.inv_freq.dtype == torch.float32
    expected = table_of(found, len(module.cos_sin_cache))
    error = found.attention_factor * (len(expected) * TABLE_ANGLE_RELATIVE * 2 + COS_SIN_OF_TURNS)
    torch.testing.assert_close(module.cos_sin_cache.double(), expected, rtol=0, atol=error)
    assert "_compute_inv_freq" not in vars(module)
    assert module.max_position_embeddings == built(CLASSES[name][0]).max_position_embeddings


@pytest.mark.parametrize("name", CLASSES)
def test_a_part_of_the_table_is_the_beginning_of_it(name: str) -> None:
    module = built(CLASSES[name][0])
    part = own_table(stock(module), module, 48)
    assert len(part) >= 48
    assert torch.equal(part, module.cos_sin_cache[: len(part)])


def deployment(rope_parameters: dict[str, Any], method: str, scale: float = 2.0) -> Deployment:
    trained, parameters, _ = own(method).of_checkpoint(rope_parameters, SERVED)
    return Deployment(
        rope_type=method if method != "default" else "linear",
        parameters=parameters if method != "default" else {},
        scales=(1.0, scale),
        original_max_position_embeddings=trained,
        max_model_len=int(trained * scale),
    )


@pytest.mark.parametrize("name", [name for name in SCALED if name != "Gemma4RotaryEmbedding"])
def test_scale_1_of_what_takes_the_place_of_a_class_is_the_table_of_the_class(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope_parameters, method = CLASSES[name]
    assert method is not None
    unscaled = built(rope_parameters).cos_sin_cache
    monkeypatch.setattr(building, "checked_deployment", lambda: deployment(rope_parameters, method))
    module = built(rope_parameters)
    [rotary] = STATE.rotaries
    assert module.posenc_scaled and module.cos_sin_cache.shape == (sum(rotary.lengths), HEAD_DIM)
    assert rotary.lengths[0] == SERVED * (4 if name == "MRotaryEmbedding" else 1)
    assert torch.equal(module.cos_sin_cache[: rotary.lengths[0]], unscaled[: rotary.lengths[0]])


def test_scale_1_of_gemma_4_is_the_table_of_its_class_and_its_last_pairs_never_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rope_parameters, _ = CLASSES["Gemma4RotaryEmbedding"]
    unscaled = built(rope_parameters).cos_sin_cache
    spec = RotarySpec(rotary_dim=HEAD_DIM, rope_theta=1e4, original_max_position_embeddings=SERVED, num_rotated_pairs=4)
    checkpoint = Checkpoint(max_position_embeddings=SERVED, spec=spec)
    monkeypatch.setattr(building, "checked_deployment", lambda: deployment(rope_parameters, "default"))
    monkeypatch.setattr(building, "_checkpoint_of", lambda *_: checkpoint)
    module = built(rope_parameters, types.SimpleNamespace(uses_mrope=False))
    assert torch.equal(module.cos_sin_cache[:SERVED], unscaled)
    cos, sin = module.cos_sin_cache[SERVED:].chunk(2, -1)
    assert (cos[:, 4:] == 1).all() and not sin[:, 4:].any() and sin[1:, :4].all()


def test_another_attention_factor_than_that_of_the_class_is_another_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    rope_parameters, _ = CLASSES["YaRNScalingRotaryEmbedding"]
    changed = deployment(rope_parameters | {"attention_factor": 1.5}, "yarn")
    monkeypatch.setattr(building, "checked_deployment", lambda: changed)
    with pytest.raises(ValueError, match="scale 1 must rotate exactly as the checkpoint does, got another rotation by"):
        built(rope_parameters)


GROWING = {
    "Llama3RotaryEmbedding": ({"factor": 16.0}, INV_FREQ_RELATIVE),
    "YaRNScalingRotaryEmbedding": ({"factor": 8.0}, INV_FREQ_BLENDED_RELATIVE),
    "DeepseekScalingRotaryEmbedding": ({"factor": 8.0}, INV_FREQ_BLENDED_RELATIVE),
    "LinearScalingRotaryEmbedding": ({"factor": 16.0}, INV_FREQ_RELATIVE),
    "DynamicNTKScalingRotaryEmbedding": ({"max_trained_positions": SERVED // 2}, INV_FREQ_RELATIVE),
    "DynamicNTKAlphaRotaryEmbedding": ({"alpha": 2000.0}, INV_FREQ_RELATIVE),
}


@pytest.mark.parametrize("name", GROWING)
def test_a_larger_scale_of_a_tuned_checkpoint_is_vllms_class_with_a_larger_factor(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's dynamic scaling has its factor for the scale of the served length, which here is 2."""
    (rope_parameters, method), (larger, relative) = CLASSES[name], GROWING[name]
    assert method is not None
    expected = built(rope_parameters | larger).cos_sin_cache
    monkeypatch.setattr(building, "checked_deployment", lambda: deployment(rope_parameters, method))
    module = built(rope_parameters)
    scaled = module.cos_sin_cache[SERVED:][:SERVED]
    atol = 1.5 * SERVED * (relative + 2 * TABLE_ANGLE_RELATIVE)
    torch.testing.assert_close(scaled, expected[:SERVED], rtol=0, atol=atol)
    assert not torch.allclose(scaled, module.cos_sin_cache[:SERVED], atol=10 * atol)


def test_a_table_that_is_not_made_of_one_frequency_for_each_pair_is_left_to_vllm() -> None:
    module = built(CLASSES["RotaryEmbedding"][0])
    rotary_class = stock(module)

    def changed(change: Callable[[Tensor], Tensor]) -> Any:
        members = {"_compute_cos_sin_cache": lambda self: change(rotary_class._compute_cos_sin_cache(self))}
        return type("Changed", (rotary_class,), members)

    assert own_rotation(changed(lambda table: table), module) is not None
    for change in (
        lambda table: table.roll(1, -1),
        lambda table: table.repeat(1, 2),
        lambda table: table.expand(2, -1, -1),
    ):
        assert own_rotation(changed(change), module) is None


def test_of_a_model_with_three_axes_and_yarn_scale_1_must_be_as_vllm_blends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM blends pairs by four times the length that the checkpoint states, which transformers does not."""
    rope_parameters = YARN | {"rope_type": "yarn", "mrope_section": [8, 4, 4]}
    module, four_times = (
        built(rope_parameters),
        built(YARN | {"rope_type": "yarn", "original_max_position_embeddings": 256}),
    )
    found = own_rotation(stock(module), module)
    assert found is not None
    assert torch.equal(found.inv_freq, four_times._compute_inv_freq(4.0))
    monkeypatch.setattr(building, "checked_deployment", lambda: deployment(rope_parameters, "yarn"))
    with pytest.raises(ValueError, match="scale 1 must rotate exactly as the checkpoint does, got another rotation by"):
        built(rope_parameters)


@pytest.mark.parametrize("scale", [2.0, 8.0])
def test_ntk_with_mixed_b_is_vllms(scale: float) -> None:
    with set_current_vllm_config(VllmConfig()):
        theirs = NTKScalingRotaryEmbedding(128, 128, 64, 1e4, True, scale, torch.float32, mixed_b=0.625)
    spec = RotarySpec(rotary_dim=128, rope_theta=1e4, original_max_position_embeddings=64)
    ours = from_parameters("ntk", {"mixed_b": 0.625}).frequencies(spec, scale)
    expected = theirs._compute_inv_freq(1e4).double()
    torch.testing.assert_close(ours.inv_freq, expected, rtol=INV_FREQ_RELATIVE, atol=0)
