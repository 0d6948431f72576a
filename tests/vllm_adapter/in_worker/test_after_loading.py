"""What a worker does once it has loaded its model, and once it knows how large the blocks of its cache are."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import pytest
import torch
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from posenc_runtime.kernels.cpu.build import NoCompiler
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker import after_loading, cpu_seeds


def test_a_worker_without_a_connector_is_prepared_once_its_model_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []
    monkeypatch.setattr(CPUModelRunner, "sample_tokens", CPUModelRunner.sample_tokens)
    monkeypatch.setattr(after_loading, "compile_nothing_while_serving", lambda: happened.append("not compiled"))
    monkeypatch.setattr(after_loading, "turn_queries", lambda *of: happened.append(of))
    compilation = types.SimpleNamespace(static_forward_context={})
    config = types.SimpleNamespace(kv_transfer_config=None, compilation_config=compilation)
    model = torch.nn.Linear(1, 1)
    worker = types.SimpleNamespace(vllm_config=config, get_model=lambda: model, get_draft_model=lambda: None)
    monkeypatch.setattr("vllm.config.set_current_vllm_config", lambda _: contextlib.nullcontext())

    def load_model(_: Any, *, load_dummy_weights: bool = False) -> None:
        happened.append(load_dummy_weights)

    def initialize_from_config(_: Any, kv_cache_config: Any) -> None:
        happened.append(kv_cache_config)

    after_loading.preparing(load_model)(worker, load_dummy_weights=True)
    assert after_loading.turning(lambda _: "specs")(worker) == "specs"
    caches = types.SimpleNamespace(kv_cache_groups=[])
    after_loading.checking(initialize_from_config)(worker, caches)
    assert happened == [True, "not compiled", (model, None, config), caches]
    assert CPUModelRunner.sample_tokens is cpu_seeds.sample_tokens


@pytest.mark.parametrize("kind", ["bias", "cope", "plain", "read_time", None])
def test_kernels_are_compiled_with_the_model_where_a_layer_needs_them(
    kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler() -> None:
        raise NoCompiler("install one")

    monkeypatch.setattr(after_loading, "kernels", no_compiler)
    layers = {
        "recurrent": types.SimpleNamespace(),
        "attends": types.SimpleNamespace(impl=types.SimpleNamespace(kind=kind)),
    }
    config = types.SimpleNamespace(compilation_config=types.SimpleNamespace(static_forward_context=layers))
    if kind is None:
        after_loading.compile_kernels(config)
        return
    with pytest.raises(Unsupported, match="install one"):
        after_loading.compile_kernels(config)
