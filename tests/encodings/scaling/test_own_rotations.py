"""Checkpoints whose own rotation is a scaled one: what their configurations say, and what nobody has to say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posenc_runtime.encodings.scaling import from_parameters, own
from posenc_runtime.encodings.scaling.yarn import Yarn
from posenc_runtime.encodings.spec import RotarySpec

GPT_OSS = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
DEEPSEEK_V3 = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
KIMI_K2 = DEEPSEEK_V3 | {"factor": 32.0, "beta_fast": 1.0}
BY_HAND = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
HUNYUAN = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 1000.0, "beta_fast": 32}


@pytest.mark.parametrize(
    ("said", "longest", "trained", "parameters"),
    [
        pytest.param(
            GPT_OSS, 131072, 131072,
            {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "old_context_len": 4096},
            id="gpt-oss",
        ),
        pytest.param(
            DEEPSEEK_V3, 163840, 163840,
            {"factor": 40, "beta_fast": 32, "beta_slow": 1, "old_context_len": 4096, "mscale": 1, "mscale_all_dim": 1},
            id="deepseek-v3",
        ),
        pytest.param(
            KIMI_K2, 131072, 131072,
            {"factor": 32, "beta_fast": 1, "beta_slow": 1, "old_context_len": 4096, "mscale": 1, "mscale_all_dim": 1},
            id="kimi-k2",
        ),
        pytest.param(BY_HAND, 40960, 131072, {"factor": 4.0, "old_context_len": 32768}, id="yarn-by-hand"),
        pytest.param(BY_HAND, 262144, 262144, {"factor": 4.0, "old_context_len": 32768}, id="longer-than-its-factor"),
        pytest.param(
            BY_HAND | {"factor": 1.0001, "original_max_position_embeddings": 4097}, 4, 4097,
            {"factor": 1.0001, "old_context_len": 4097}, id="less-than-a-token",
        ),
        pytest.param(
            BY_HAND | {"attention_factor": None, "mscale": None, "truncate": None}, 131072, 131072,
            {"factor": 4.0, "old_context_len": 32768}, id="nulls",
        ),
        pytest.param({"rope_type": "linear", "factor": 8.0}, 131072, 131072, {"factor": 8.0}, id="gemma-3"),
        pytest.param({"rope_type": "dynamic", "factor": 2.0}, 32768, 32768, {"factor": 2.0}, id="internlm"),
        pytest.param(HUNYUAN, 32768, 32768, {"factor": 1.0, "alpha": 1000.0}, id="hunyuan"),
        pytest.param(HUNYUAN | {"factor": None}, 32768, 32768, {"alpha": 1000.0}, id="alpha-alone"),
    ],
)  # fmt: skip
def test_a_checkpoint_says_its_trained_length_and_its_own_parameters(
    said: dict[str, Any], longest: int, trained: int, parameters: dict[str, Any]
) -> None:
    method = own(said["rope_type"])
    assert method.of_checkpoint(said, longest) == (trained, parameters, None)
    from_parameters(method.rope_type, parameters)


BOTH = {"mscale": 0.7, "mscale_all_dim": 0.5}


# vLLM's YaRNScalingRotaryEmbedding takes mscales only where both are above 0; DeepseekScalingRotaryEmbedding has
# defaults for them, and no attention_factor and no truncate.
@pytest.mark.parametrize(
    ("said", "as_yarn", "as_deepseek"),
    [
        ({}, {}, {"mscale": 1.0, "mscale_all_dim": 0.0}),
        ({"mscale": 0.7}, {}, {"mscale": 0.7, "mscale_all_dim": 0.0}),
        ({"mscale_all_dim": 1}, {}, {"mscale": 1.0, "mscale_all_dim": 1}),
        ({"mscale": 0.0, "mscale_all_dim": 0.0}, {}, {"mscale": 0.0, "mscale_all_dim": 0.0}),
        (BOTH, BOTH, BOTH),
        (
            {"attention_factor": 1.0, "truncate": False},
            {"attention_factor": 1.0, "truncate": False},
            {"mscale": 1.0, "mscale_all_dim": 0.0},
        ),
    ],
)
def test_the_classes_of_vllm_read_other_keys_of_the_same_configuration(
    said: dict[str, Any], as_yarn: dict[str, Any], as_deepseek: dict[str, Any]
) -> None:
    plain = {"factor": 4.0, "old_context_len": 32768}
    assert Yarn.of_checkpoint(BY_HAND | said, 131072) == (131072, plain | as_yarn, None)
    for rope_type in ("deepseek_yarn", "deepseek_llama_scaling"):
        of_deepseek = BY_HAND | said | {"rope_type": rope_type}
        assert Yarn.of_checkpoint(of_deepseek, 131072) == (131072, plain | as_deepseek, None)


def test_what_a_checkpoint_has_to_say_is_named() -> None:
    with pytest.raises(KeyError, match="factor"):
        Yarn.of_checkpoint(BY_HAND | {"factor": None}, 131072)
    with pytest.raises(ValueError, match="rope_type dynamic must have factor or alpha, got "):
        own("dynamic").of_checkpoint({"rope_type": "dynamic"}, 2048)


def test_the_length_before_the_tuning_is_no_trained_length() -> None:
    method = Yarn(factor=32.0, old_context_len=4096)
    spec = RotarySpec(rotary_dim=64, rope_theta=150000.0, original_max_position_embeddings=4096)
    with pytest.raises(ValueError, match=r"must exceed old_context_len 4096, .* got 4096: leave it out"):
        method.frequencies(spec, 1.0)


def test_own_parameters_that_scale_nothing_are_plain_rope_to_the_bit() -> None:
    spec = RotarySpec(rotary_dim=64, rope_theta=150000.0, original_max_position_embeddings=4096)
    plain = from_parameters("default", {}).frequencies(spec, 1.0)
    for method in (Yarn(old_context_len=4096), from_parameters("dynamic", {"factor": 2.5})):
        unscaled = method.frequencies(spec, 1.0)
        assert torch.equal(unscaled.inv_freq, plain.inv_freq) and unscaled.attention_factor == 1.0


def test_a_scale_of_a_checkpoints_yarn_slows_the_pairs_that_it_slows_and_no_others() -> None:
    trained, parameters, _ = Yarn.of_checkpoint(GPT_OSS, 131072)
    spec = RotarySpec(rotary_dim=64, rope_theta=150000.0, original_max_position_embeddings=trained)
    unscaled, doubled = (from_parameters("yarn", parameters).frequencies(spec, scale) for scale in (1.0, 2.0))
    slowed = unscaled.inv_freq / doubled.inv_freq
    # 4,096 tokens hold 32 turns of pair 8.09 and 1 turn of pair 17.4.
    assert (slowed[:9] == 1).all() and (slowed[18:] == 2).all()
    assert ((slowed[9:18] > 1) & (slowed[9:18] < 2)).all()
