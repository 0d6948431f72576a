"""The oracles of whole decoders against transformers, as far as it has them."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MptConfig, MptForCausalLM
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from tests.mpt_and_baichuan import (
    HEADS,
    TINY_BAICHUAN,
    TINY_MPT,
    VOCABULARY,
    as_llama,
    baichuan_weights,
    mpt_weights,
)
from tests.references.baichuan import baichuan_logits
from tests.references.mpt import mpt_logits, mpt_slopes
from tests.tolerance import ALIBI_BIAS_RELATIVE, LOGIT_TINY_DECODER

TOKENS = torch.randint(VOCABULARY, (40,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("alibi_bias_max", [8, 16])
@pytest.mark.parametrize("num_heads", [1, 8, 12, 40])
def test_slopes_of_mpt_are_those_that_transformers_adds(num_heads: int, alibi_bias_max: int) -> None:
    added = build_mpt_alibi_tensor(num_heads, 2, alibi_bias_max)
    slopes = added[:, 0, 1] - added[:, 0, 0]
    assert slopes.tolist() == pytest.approx(mpt_slopes(num_heads, alibi_bias_max), rel=ALIBI_BIAS_RELATIVE)


@pytest.mark.parametrize("changed", [{}, {"clip_qkv": 0.8, "softmax_scale": 0.5}], ids=["as MPT-7B", "with limits"])
@torch.no_grad()
def test_mpt_is_what_transformers_computes_under_the_same_names(changed: dict[str, float]) -> None:
    config = TINY_MPT | {"attn_config": TINY_MPT["attn_config"] | changed}
    weights = mpt_weights(config)
    model = MptForCausalLM(MptConfig(**config)).eval()
    model.load_state_dict(weights | {"lm_head.weight": weights["transformer.wte.weight"]})
    expected = model(TOKENS[None]).logits[0]
    actual = mpt_logits(weights, TOKENS, config)
    torch.testing.assert_close(actual.float(), expected, rtol=0, atol=LOGIT_TINY_DECODER)


@torch.no_grad()
def test_baichuan_with_rotary_embeddings_is_a_llama_whose_projections_are_one_matrix() -> None:
    weights = baichuan_weights(TINY_BAICHUAN)
    config, renamed = as_llama(TINY_BAICHUAN, weights)
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    model.load_state_dict(renamed)
    expected = model(TOKENS[None]).logits[0]
    actual = baichuan_logits(weights, TOKENS, num_heads=HEADS, alibi=False, norm_head=False)
    torch.testing.assert_close(actual.float(), expected, rtol=0, atol=LOGIT_TINY_DECODER)
