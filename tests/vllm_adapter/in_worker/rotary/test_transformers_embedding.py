"""The rotary embedding of vLLM's Transformers backend: transformers' own, with each token at its scale."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from transformers import CohereConfig, GPTNeoXConfig, LlamaConfig, Olmo3Config
from transformers.models.cohere.modeling_cohere import CohereRotaryEmbedding
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.olmo3.modeling_olmo3 import Olmo3RotaryEmbedding
from vllm import forward_context
from vllm.config import VllmConfig, set_current_vllm_config

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_worker.rotary import building, registration
from posenc_runtime.vllm_adapter.in_worker.rotary.transformers_embedding import (
    PosencTransformersRotaryEmbedding,
    replacing,
)
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE
from tests.tolerance import SOME_FLOAT32_OPERATIONS

LINEAR = Deployment(rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=64, max_model_len=128)
SIZES: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
PLAIN = {"rope_type": "default", "rope_theta": 100.0}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "halves": (LlamaRotaryEmbedding, LlamaConfig, PLAIN),
    "neighbours": (CohereRotaryEmbedding, CohereConfig, PLAIN),
    "a quarter": (GPTNeoXRotaryEmbedding, GPTNeoXConfig, PLAIN | {"partial_rotary_factor": 0.25}),
}


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: LINEAR)
    monkeypatch.setattr(STATE, "rotaries", [])
    monkeypatch.setattr(STATE, "model", None)


def made(stock: Any, of_layers: str | None = None) -> PosencTransformersRotaryEmbedding:
    ours = PosencTransformersRotaryEmbedding(stock, of_layers)
    with set_current_vllm_config(VllmConfig()):
        assert ours.scale()
    return ours


def in_a_forward(monkeypatch: pytest.MonkeyPatch, slots: list[int]) -> None:
    context = types.SimpleNamespace(slot_mapping={"layer": torch.tensor(slots)}, additional_kwargs={})
    monkeypatch.setattr(forward_context, "is_forward_context_available", lambda: True)
    monkeypatch.setattr(forward_context, "get_forward_context", lambda: context)
    monkeypatch.setattr(STATE, "block_size", {"layer": 4})
    (rotary,) = STATE.rotaries
    monkeypatch.setattr(STATE, "block_row_offset", torch.tensor(rotary.row_offsets))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_token_gets_transformers_own_cosines_at_the_scale_of_its_block(
    case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedding, config, rope_parameters = CASES[case]
    stock = embedding(config(**SIZES, max_position_embeddings=64, rope_parameters=rope_parameters))
    scaled = embedding(
        config(
            **SIZES,
            max_position_embeddings=64,
            rope_parameters=rope_parameters | {"rope_type": "linear", "factor": 2.0},
        )
    )
    ours = made(stock)
    in_a_forward(monkeypatch, [0, 1, 4, 5])  # two tokens at scale 1, and two at scale 2
    positions, states = torch.tensor([[3, 63, 3, 127]]), torch.zeros(1, 4, 8, dtype=dtype)
    for part, own, twice in zip(
        ours(states, positions), stock(states, positions), scaled(states, positions), strict=True
    ):
        assert part.dtype == own.dtype and part.shape == own.shape
        assert torch.equal(part[:, :2], own[:, :2])
        rounding = torch.finfo(dtype).eps if dtype != torch.float32 else SOME_FLOAT32_OPERATIONS * 64
        torch.testing.assert_close(part[:, 2:], twice[:, 2:], rtol=0, atol=rounding)
        assert (part[:, 2:] - own[:, 2:]).abs().max() > 0.1


def test_layers_of_another_type_keep_transformers_own_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    types_of_layers = ["full_attention", "sliding_attention"]
    each = {kind: PLAIN for kind in types_of_layers}
    config = Olmo3Config(**SIZES, max_position_embeddings=64, layer_types=types_of_layers, rope_parameters=each)
    stock = Olmo3RotaryEmbedding(config)
    ours = made(stock, "full_attention")
    in_a_forward(monkeypatch, [4, 5])
    states, positions = torch.zeros(1, 2, 8), torch.tensor([[3, 63]])
    for kind in types_of_layers:
        same = all(
            torch.equal(one, other)
            for one, other in zip(ours(states, positions, kind), stock(states, positions, kind), strict=True)
        )
        assert same is (kind == "sliding_attention")


def test_after_vllm_has_replaced_a_models_layers_the_rotary_embedding_is_replaced() -> None:
    stock = LlamaRotaryEmbedding(LlamaConfig(**SIZES, max_position_embeddings=64, rope_parameters=PLAIN))
    model = torch.nn.ModuleDict({"rotary_emb": stock, "other": torch.nn.Linear(2, 2)})
    backend = torch.nn.Module()
    backend.model = model
    order: list[str] = []
    with set_current_vllm_config(VllmConfig()):
        replacing(lambda _: order.append("vllm"))(backend)
    assert order == ["vllm"]
    assert isinstance(model["rotary_emb"], PosencTransformersRotaryEmbedding)
    assert isinstance(model["other"], torch.nn.Linear)
    STATE.forget_model()


def test_without_scales_transformers_own_embedding_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "checked_deployment", lambda: None)
    stock = LlamaRotaryEmbedding(LlamaConfig(**SIZES, max_position_embeddings=64, rope_parameters=PLAIN))
    backend = torch.nn.Module()
    backend.model = torch.nn.ModuleDict({"rotary_emb": stock})
    replacing(lambda _: None)(backend)
    assert backend.model["rotary_emb"] is stock and STATE.rotaries == []
