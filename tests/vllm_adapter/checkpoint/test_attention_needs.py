"""Which attention checkpoints ask for, as their configurations say it."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import BloomConfig, FalconConfig, GPT2Config, LlamaConfig, MptConfig

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.vllm_adapter.checkpoint.attention_needs import needed_for
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        pytest.param(BloomConfig(), "bias", id="bloom"),
        pytest.param(FalconConfig(alibi=True), "bias", id="falcon with alibi"),
        pytest.param(FalconConfig(alibi=False), "stock", id="falcon with rotary embeddings"),
        pytest.param(MptConfig(), "bias", id="mpt"),
        pytest.param(MptConfig(attn_config={"alibi": False}), "stock", id="mpt with learned positions"),
        pytest.param(LlamaConfig(), "stock", id="llama"),
        pytest.param(GPT2Config(), "stock", id="gpt2"),
        pytest.param(PosencConfig(position_encoding_type="t5"), "bias", id="ours with t5's buckets"),
        pytest.param(PosencConfig(position_encoding_type="cope"), "cope", id="ours with contextual positions"),
        pytest.param(PosencConfig(position_encoding_type="shaw"), "plain", id="ours with shaw's"),
        pytest.param(PosencConfig(position_encoding_type="xpos"), "stock", id="ours with xpos"),
    ],
)
def test_the_configuration_says_which_backend_layers_need(config: Any, kind: str) -> None:
    assert needed_for(config) == kind


@pytest.mark.parametrize(
    ("backend", "needs", "ours"),
    [
        ("auto", "bias", True),
        ("auto", "plain", True),
        ("auto", "stock", False),
        ("stock", "bias", False),
        ("bias", "stock", True),
    ],
)
def test_ours_is_taken_where_it_is_needed_or_asked_for(backend: Any, needs: Any, ours: bool) -> None:
    assert AttentionChoice(backend=backend, needs=needs).takes_ours is ours
