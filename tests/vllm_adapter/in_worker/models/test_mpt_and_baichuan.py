"""MPT and Baichuan without an engine: what their configurations say, what is refused, and where weights go."""

from __future__ import annotations

import json
import pathlib
import types
from typing import Any

import pytest
import torch
from transformers import AutoConfig, MptConfig, MptForCausalLM

from posenc_runtime.vllm_adapter.checkpoint import own_models
from posenc_runtime.vllm_adapter.checkpoint.baichuan_config import BaichuanConfig
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_checkpoint
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import condition_of_rotating, has_own_model
from posenc_runtime.vllm_adapter.checkpoint.mpt_rules import logit_scale
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.models.weights import refuse_lora_and_quantised
from tests.mpt_and_baichuan import BAICHUAN_13B, MPT_7B, TINY_BAICHUAN, TINY_MPT, baichuan_weights

# What the other published checkpoints say otherwise.
BAICHUAN_7B = BAICHUAN_13B | {
    "architectures": ["BaiChuanForCausalLM"],
    "hidden_size": 4096,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
}
BAICHUAN_2_7B = BAICHUAN_7B | {"architectures": ["BaichuanForCausalLM"], "vocab_size": 125696, "z_loss_weight": 0}
BAICHUAN_2_13B = BAICHUAN_13B | {"vocab_size": 125696, "z_loss_weight": 0}


def written(folder: pathlib.Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("published", "alibi", "norm_head"),
    [
        pytest.param(BAICHUAN_7B, False, False, id="Baichuan-7B"),
        pytest.param(BAICHUAN_13B, True, False, id="Baichuan-13B"),
        pytest.param(BAICHUAN_2_7B, False, True, id="Baichuan2-7B"),
        pytest.param(BAICHUAN_2_13B, True, True, id="Baichuan2-13B"),
    ],
)
@pytest.mark.parametrize("trust_remote_code", [False, True])
def test_published_baichuans_are_read_by_our_configuration_whatever_their_auto_map(
    published: dict[str, Any], alibi: bool, norm_head: bool, trust_remote_code: bool, tmp_path: pathlib.Path
) -> None:
    own_models.register()
    # There is no configuration_baichuan.py: reading it would fail.
    config = AutoConfig.from_pretrained(written(tmp_path, published), trust_remote_code=trust_remote_code)
    assert isinstance(config, BaichuanConfig)
    assert (config.alibi, config.norm_head, config.max_position_embeddings) == (alibi, norm_head, 4096)
    own_models.refuse_variant(config)
    config.save_pretrained(tmp_path / "again")
    again = AutoConfig.from_pretrained(tmp_path / "again")
    assert (again.alibi, again.norm_head) == (alibi, norm_head)


def test_baichuan_with_rotary_embeddings_is_scaled_and_with_alibi_is_not(tmp_path: pathlib.Path) -> None:
    rotated = read_checkpoint(written(tmp_path, BAICHUAN_7B), {})
    assert rotated.spec is not None and (rotated.spec.rotary_dim, rotated.spec.rope_theta) == (128, 10000.0)
    biased = read_checkpoint(written(tmp_path, BAICHUAN_13B), {})
    assert biased.spec is None and biased.max_position_embeddings == 4096
    assert condition_of_rotating("BaichuanForCausalLM") is None


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        (
            {"hidden_size": 120},
            r"alibi must be in a Baichuan checkpoint's config\.json where hidden_size is not 4096 or 5120",
        ),
        ({"vocab_size": 64016}, r"norm_head must be .* where vocab_size is not 64000 or 125696, got vocab_size 64016"),
        ({"num_attention_heads": 48}, "hidden_size must be a multiple of num_attention_heads 48, got 5120"),
        ({"norm_head": True, "tie_word_embeddings": True}, "tie_word_embeddings must be false where norm_head is true"),
    ],
)
def test_baichuans_that_are_not_known_to_be_served_right_are_refused(
    changed: dict[str, Any], rule: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(Unsupported, match=rule):
        read_checkpoint(written(tmp_path, BAICHUAN_13B | changed), {})


def test_mpt_7b_is_served_as_it_is(tmp_path: pathlib.Path) -> None:
    checkpoint = read_checkpoint(written(tmp_path, MPT_7B), {})
    assert (checkpoint.spec, checkpoint.max_position_embeddings) == (None, 2048)
    assert has_own_model("MPTForCausalLM") and has_own_model("MptForCausalLM")


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        (
            {"attn_type": "multiquery_attention"},
            "attn_type multihead_attention, got 'multiquery_attention'",
        ),
        ({"alibi": False}, "attn_config.alibi True, got False: learned positions"),
        (
            {"prefix_lm": True},
            "attn_config.prefix_lm None or False, got True: only causal attention",
        ),
        ({"qk_ln": True}, "attn_config.qk_ln None or False, got True"),
        ({"rope": True}, "attn_config.rope None or False, got True"),
        ({"sliding_window_size": 512}, "attn_config.sliding_window_size None or -1, got 512"),
    ],
)
def test_variants_of_mpts_attention_are_refused_by_name(
    changed: dict[str, Any], rule: str, tmp_path: pathlib.Path
) -> None:
    config = MPT_7B | {"attn_config": MPT_7B["attn_config"] | changed}
    with pytest.raises(Unsupported, match=rule):
        read_checkpoint(written(tmp_path, config), {})


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"norm_type": "rmsnorm"}, "norm_type layernorm or low_precision_layernorm, got 'rmsnorm'"),
        ({"ffn_config": {"ffn_type": "mptglu"}}, "ffn_config .*, got {'ffn_type': 'mptglu'}"),
        ({"logit_scale": "sqrt"}, "logit_scale must be a number, null or 'inv_sqrt_d_model', got 'sqrt'"),
        ({"n_heads": 24}, "d_model must be a multiple of n_heads 24, got 4096"),
    ],
)
def test_other_variants_of_mpt_are_refused_by_name(changed: dict[str, Any], rule: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(Unsupported, match=rule):
        read_checkpoint(written(tmp_path, MPT_7B | changed), {})


def test_mpts_own_configuration_class_is_refused() -> None:
    class Remote:
        model_type = "mpt"
        attn_config = MPT_7B["attn_config"]

    with pytest.raises(Unsupported, match=r"engine\.trust_remote_code must be left out for MPT"):
        own_models.refuse_variant(Remote())


def test_logits_of_mpt_are_scaled_by_a_number_a_word_or_not_at_all() -> None:
    scales = [logit_scale(MptConfig(d_model=64, logit_scale=said)) for said in (None, 0.5, "inv_sqrt_d_model")]
    assert scales == [1.0, 0.5, 0.125]


def test_every_weight_that_transformers_saves_of_an_mpt_has_its_place() -> None:
    from posenc_runtime.vllm_adapter.in_worker.models.mpt import MptForCausalLM as Served

    saved = list(MptForCausalLM(MptConfig(**TINY_MPT)).state_dict())
    mapped = Served.hf_to_vllm_mapper.apply_list(saved)
    assert len(set(mapped)) == len(saved)
    assert {"transformer.blocks.1.attn.qkv_proj.weight", "transformer.blocks.1.attn.o_proj.weight"} < set(mapped)
    assert "transformer.wte.weight" in mapped and not any("Wqkv" in name or "out_proj" in name for name in mapped)


def test_weights_of_baichuan_have_their_places_and_a_normalised_head() -> None:
    from posenc_runtime.vllm_adapter.in_worker.models.baichuan import BaichuanModel, normalised_head

    weights = baichuan_weights(TINY_BAICHUAN)
    mapped = BaichuanModel.hf_to_vllm_mapper.apply_list(list(weights))
    assert "model.layers.1.self_attn.qkv_proj.weight" in mapped
    assert mapped.count("model.layers.0.mlp.gate_up_proj.weight") == 2
    normalised = dict(normalised_head(weights.items()))
    lengths = normalised.pop("lm_head.weight").norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    assert all(weight is weights[name] for name, weight in normalised.items())


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"quant_config": object()}, "quantization must be left out for MPTForCausalLM, got awq"),
        ({"lora_config": object()}, "enable_lora must be false for MPTForCausalLM, got true: .* Merge them"),
    ],
)
def test_lora_and_quantised_weights_are_refused(changed: dict[str, Any], rule: str) -> None:
    model = types.SimpleNamespace(architectures=["MPTForCausalLM"], quantization="awq")
    plain = {"model_config": model, "quant_config": None, "lora_config": None}
    refuse_lora_and_quantised(types.SimpleNamespace(**plain))
    with pytest.raises(Unsupported, match=rule):
        refuse_lora_and_quantised(types.SimpleNamespace(**plain | changed))
