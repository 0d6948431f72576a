"""Attention rotates where it was asked to and can; where it cannot, the reason is said at start-up."""

from __future__ import annotations

import re
import types
from typing import Any

import pytest

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.active import KEY as DEPLOYMENT
from posenc_runtime.vllm_adapter.contract.attention_choice import KEY, AttentionChoice
from posenc_runtime.vllm_adapter.refusals import rotating_attention as fused_rotary
from posenc_runtime.vllm_adapter.refusals.rotating_attention import is_fused, reason_against_rotating

YARN = Deployment(rope_type="yarn", scales=(1.0, 2.0), original_max_position_embeddings=64, max_model_len=128)
UNROTATED = Deployment(
    rope_type="none",
    original_max_position_embeddings=64,
    max_model_len=128,
    on_crossing="pin",
    allow_beyond_trained=True,
)
PLAIN = {"rope_type": "default", "rope_theta": 1e6}


def engine(
    choice: AttentionChoice,
    deployment: Deployment = YARN,
    *,
    architecture: str = "LlamaForCausalLM",
    backend: str | None = None,
    per_kind: dict[str, str] | None = None,
    cache_dtype: str = "auto",
    kv_cache_scheme: dict[str, Any] | None = None,
    uses_mrope: bool = False,
    use_mla: bool = False,
    **text_config: Any,
) -> Any:
    return types.SimpleNamespace(
        additional_config={DEPLOYMENT: deployment.to_mapping(), KEY: choice.to_mapping()},
        attention_config=types.SimpleNamespace(
            backend=None if backend is None else types.SimpleNamespace(name=backend), backend_per_kind=per_kind or {}
        ),
        cache_config=types.SimpleNamespace(cache_dtype=cache_dtype),
        speculative_config=None,
        quant_config=types.SimpleNamespace(kv_cache_scheme=kv_cache_scheme) if kv_cache_scheme else None,
        model_config=types.SimpleNamespace(
            architectures=[architecture],
            uses_mrope=uses_mrope,
            use_mla=use_mla,
            hf_text_config=types.SimpleNamespace(**({"rope_parameters": PLAIN} | text_config)),
        ),
    )


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_rotary, "_capability", lambda: (9, 0))


ON = AttentionChoice(fused_rotary="on")


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        pytest.param(engine(ON), None, id="llama"),
        pytest.param(engine(ON, backend="FLASH_ATTN", cache_dtype="fp8"), None, id="float8"),
        pytest.param(engine(ON, UNROTATED), "this model has no rotary embeddings", id="unrotated"),
        pytest.param(
            engine(AttentionChoice(fused_rotary="on", needs="cope")), "layers use attention of posenc", id="ours"
        ),
        pytest.param(engine(ON, backend="FLASHINFER"), "engine.attention_backend is FLASHINFER", id="flashinfer"),
        pytest.param(engine(ON, per_kind={"full_attention": "FLASHINFER"}), "backend_per_kind", id="per-kind"),
        pytest.param(
            engine(ON, cache_dtype="nvfp4"), "kv_cache_dtype is nvfp4, and not one of .*, fp8, fp8_e4m3", id="cache"
        ),
        pytest.param(
            engine(ON, cache_dtype="fp8", kv_cache_scheme={"strategy": "tensor"}), None, id="float8-checkpoint"
        ),
        pytest.param(
            engine(ON, cache_dtype="fp8", kv_cache_scheme={"strategy": "attn_head"}),
            "its KV cache with a scale for each head",
            id="float8-checkpoint-by-heads",
        ),
        pytest.param(
            engine(ON, use_mla=True), "multi-head latent attention, whose rotated part is cached", id="latents"
        ),
        pytest.param(engine(ON, uses_mrope=True), "a position on each of several axes", id="axes"),
        pytest.param(
            engine(
                ON,
                architecture="Gemma3ForCausalLM",
                rope_parameters={"full_attention": PLAIN, "sliding_attention": PLAIN | {"rope_theta": 1e4}},
            ),
            "its layers have different rotary embeddings$",
            id="a-rope-for-each-type-of-layer",
        ),
        pytest.param(
            engine(ON, architecture="Plamo3ForCausalLM", rope_local_theta=10000),
            r"its layers have different rotary embeddings \(rope_theta 1000000\.0 and rope_local_theta 10000\)",
            id="two-bases",
        ),
        pytest.param(
            engine(ON, architecture="CohereForCausalLM"),
            "rotates on the condition `.*`",
            id="some-layers-do-not-rotate",
        ),
        pytest.param(
            engine(ON, architecture="Qwen3NextForCausalLM"),
            "pass rotated queries and keys to attention unchanged",
            id="in-between",
        ),
    ],
)
def test_what_cannot_rotate_in_attention_is_named(engine: Any, reason: str | None) -> None:
    found = reason_against_rotating(engine)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(reason, found), found


def test_other_devices_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_rotary, "_capability", lambda: None)
    assert "needs an NVIDIA GPU" in str(reason_against_rotating(engine(ON)))


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize(
    ("fused_rotary_setting", "measured", "fused"),
    [("on", False, True), ("off", True, False), ("auto", True, True), ("auto", False, False)],
)
def test_auto_is_on_where_it_was_measured_to_be_as_fast(
    fused_rotary_setting: Any, measured: bool, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_rotary, "MEASURED_FASTER", frozenset({(9, 0)} if measured else ()))
    assert is_fused(engine(AttentionChoice(fused_rotary=fused_rotary_setting))) is fused


@pytest.mark.usefixtures("on_hopper")
def test_auto_leaves_alone_what_cannot_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_rotary, "MEASURED_FASTER", frozenset({(9, 0)}))
    assert not is_fused(engine(AttentionChoice(), backend="FLASHINFER"))
    assert not is_fused(engine(AttentionChoice(), UNROTATED))
    assert not is_fused(None)
    assert not is_fused(types.SimpleNamespace(additional_config={}))  # type: ignore[arg-type]
