"""What vLLM's attention on the CPU cannot compute is refused before an engine starts."""

from __future__ import annotations

import contextlib
import types

import pytest
import torch
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.refusals.cpu_attention import refuse_latent_dtype

_AMX = pytest.importorskip("vllm.v1.attention.backends.mla.amx_mla", reason="this vLLM has no MLA for AMX")


def configured(dtype: torch.dtype, *, use_mla: bool = True) -> types.SimpleNamespace:
    model = types.SimpleNamespace(use_mla=use_mla, dtype=dtype, get_head_size=lambda: 576)
    return types.SimpleNamespace(model_config=model, cache_config=types.SimpleNamespace(cache_dtype="auto"))


@pytest.fixture
def with_backend(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Whatever this CPU has, vLLM takes this attention for latents."""
    monkeypatch.setattr("vllm.config.set_current_vllm_config", contextlib.nullcontext)
    monkeypatch.setattr("vllm.v1.attention.selector.get_attn_backend", lambda *_, **__: request.param)
    monkeypatch.setattr("vllm.platforms.current_platform.is_cpu", lambda: True)


@pytest.mark.parametrize("with_backend", [_AMX.AMXMLABackend], indirect=True)
@pytest.mark.usefixtures("with_backend")
def test_amx_takes_latents_in_bfloat16_alone() -> None:
    refuse_latent_dtype(configured(torch.bfloat16))
    with pytest.raises(Unsupported, match=r"must be bfloat16 .* AMX_MLA, got float32"):
        refuse_latent_dtype(configured(torch.float32))


@pytest.mark.parametrize("with_backend", [CPUMLABackend], indirect=True)
@pytest.mark.usefixtures("with_backend")
def test_the_attention_of_every_cpu_takes_latents_in_float32() -> None:
    refuse_latent_dtype(configured(torch.float32))


@pytest.mark.parametrize("with_backend", [_AMX.AMXMLABackend], indirect=True)
@pytest.mark.usefixtures("with_backend")
def test_models_without_latents_are_not_asked() -> None:
    refuse_latent_dtype(configured(torch.float32, use_mla=False))
