"""Which implementation a layer gets from vLLM's arguments, and what is refused there."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from posenc_runtime.vllm_adapter.contract.attention_choice import KEY, AttentionChoice
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.attention import implementation
from posenc_runtime.vllm_adapter.in_worker.attention.implementation import Implementation


def taken(*arguments: Any, **keywords: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return "ours", arguments, keywords


def stock(*arguments: Any, **keywords: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return "stock", arguments, keywords


def made(
    monkeypatch: pytest.MonkeyPatch,
    choice: AttentionChoice | None,
    *,
    slopes: list[float] | None = None,
    dtype: str = "auto",
    **others: Any,
) -> Any:
    additional = {} if choice is None else {KEY: choice.to_mapping()}
    config = types.SimpleNamespace(
        additional_config=additional, model_config=types.SimpleNamespace(dtype=torch.bfloat16)
    )
    monkeypatch.setattr(implementation, "get_current_vllm_config", lambda: config)
    make = Implementation(stock, {"bias": taken, "cope": taken, "plain": taken}, stock_has_alibi_sqrt=True)
    return make(2, 64, 0.125, 2, slopes, None, dtype, **others)


def test_a_layer_with_slopes_gets_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    whose, arguments, keywords = made(monkeypatch, AttentionChoice(), slopes=[0.5, 0.25], use_alibi_sqrt=True)
    assert whose == "ours" and arguments[:5] == (2, 64, 0.125, 2, [0.5, 0.25])
    assert keywords["asked"].use_alibi_sqrt and keywords["choice"] == AttentionChoice()


def test_a_layer_that_asks_for_nothing_gets_vllms_with_all_that_vllm_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whose, _, keywords = made(monkeypatch, AttentionChoice(), use_alibi_sqrt=False, sinks="sinks")
    assert whose == "stock" and keywords == {"use_alibi_sqrt": False, "sinks": "sinks"}


def test_an_engine_without_posenc_keeps_vllms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(monkeypatch, None, slopes=[0.5, 0.25])[0] == "stock"


@pytest.mark.parametrize(("dtype", "whose"), [("auto", "ours"), ("bfloat16", "ours")])
def test_caches_of_the_models_own_type_are_served(monkeypatch: pytest.MonkeyPatch, dtype: str, whose: str) -> None:
    assert made(monkeypatch, AttentionChoice(), slopes=[0.5, 0.25], dtype=dtype)[0] == whose


@pytest.mark.parametrize("dtype", ["fp8", "float16", "int8_per_token_head"])
def test_caches_of_another_type_are_refused(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    with pytest.raises(Unsupported, match=rf"kv_cache_dtype must be left out .*\(alibi\), got '{dtype}'"):
        made(monkeypatch, AttentionChoice(), slopes=[0.5, 0.25], dtype=dtype)


def test_attention_sinks_are_refused_for_layers_with_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="sinks must be left out"):
        made(monkeypatch, AttentionChoice(), slopes=[0.5, 0.25], sinks="sinks")
