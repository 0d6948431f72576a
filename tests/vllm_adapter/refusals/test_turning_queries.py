"""Engines that cannot turn queries are refused by name before they load a model."""

from __future__ import annotations

import types
from typing import Any

import pytest
from vllm.platforms import current_platform

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.refusals import turning_queries
from posenc_runtime.vllm_adapter.refusals.turning_queries import refuse_turning

REROPE = Deployment(rope_type="rerope", original_max_position_embeddings=256, max_model_len=4096)


def engine(block_size: int = 32, fused_rotary: str = "auto", is_said: bool = False, **model: Any) -> Any:
    described = {"is_encoder_decoder": False, "is_multimodal_model": False, "uses_mrope": False, "use_mla": False}
    additional = {"posenc": REROPE.to_mapping(), "posenc_attention": {"fused_rotary": fused_rotary}}
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(**{**described, "is_hybrid": False, "multimodal_config": None, **model}),
        cache_config=types.SimpleNamespace(block_size=block_size, user_specified_block_size=is_said),
        additional_config=additional,
    )


def seeing(language_model_only: bool, *, enable_mm_embeds: bool = False) -> dict[str, Any]:
    taken = types.SimpleNamespace(language_model_only=language_model_only, enable_mm_embeds=enable_mm_embeds)
    return {"uses_mrope": True, "is_multimodal_model": True, "multimodal_config": taken}


@pytest.mark.parametrize(
    "served",
    [{}, {"uses_mrope": True}, seeing(True), {"is_multimodal_model": True}, {"is_hybrid": True, "block_size": 96}],
    ids=["text", "M-RoPE of text", "M-RoPE for text alone", "images in a row", "blocks that will grow"],
)
def test_what_can_turn_queries_is_served(served: dict[str, Any]) -> None:
    refuse_turning(engine(**served), REROPE)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        (
            {"use_mla": True},
            "scaling.rope_type rerope needs a model that caches keys, got multi-head latent attention:",
        ),
        ({"is_encoder_decoder": True}, "scaling.rope_type rerope needs a decoder, got an encoder with a decoder: keys"),
        (seeing(False), r"engine.language_model_only must be true where .* rerope .*\(M-RoPE\), because far pixels"),
        (
            seeing(True, enable_mm_embeds=True),
            r"engine.enable_mm_embeds must be false .*\(M-RoPE\), because embeddings",
        ),
        ({"fused_rotary": "on"}, "attention.fused_rotary must be auto or off where .* is rerope, got on: keys stay"),
        (
            {"block_size": 96},
            "scaling.page must be given where an eighth of the trained length is less than a block of 96 tokens",
        ),
    ],
    ids=[
        "latents",
        "an encoder",
        "images on axes",
        "embeddings on axes",
        "rotation in attention",
        "a block above a page",
    ],
)
def test_what_cannot_is_refused_by_name(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(Unsupported, match=f"^{rule}"):
        refuse_turning(engine(**changed), REROPE)


def test_another_device_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    monkeypatch.setattr(turning_queries, "is_on_cuda", lambda: False)
    rule = r"^scaling\.rope_type rerope needs a CPU or an NVIDIA GPU, got vLLM for \w+: no kernel turns queries there"
    with pytest.raises(Unsupported, match=rule):
        refuse_turning(engine(), REROPE)
