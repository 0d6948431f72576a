"""Queries of multi-head latent attention carry what their scale multiplies the softmax scale by."""

from __future__ import annotations

import math
import types

import pytest
import torch
from vllm import forward_context

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.rotary import registration
from posenc_runtime.vllm_adapter.in_worker.rotary.latent_attention import query_factors
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE

DEEPSEEK_V3 = {"factor": 40.0, "old_context_len": 4096, "mscale": 1.0, "mscale_all_dim": 1.0}


def deployment(**parameters: float) -> Deployment:
    return Deployment(
        rope_type="yarn",
        parameters=parameters,
        scales=(1.0, 2.0, 4.0),
        original_max_position_embeddings=163840,
        max_model_len=655360,
    )


def mscale(factor: float) -> float:
    return 0.1 * math.log(factor) + 1


def test_a_scale_multiplies_the_softmax_scale_by_the_square_of_mscale_of_its_factor() -> None:
    found = query_factors(deployment(**DEEPSEEK_V3), folded=mscale(40) ** 2)
    assert found == pytest.approx([1.0, (mscale(80) / mscale(40)) ** 2, (mscale(160) / mscale(40)) ** 2], rel=1e-12)


@pytest.mark.parametrize("parameters", [{}, {"factor": 40.0, "old_context_len": 4096}], ids=["plain", "no-mscale"])
def test_where_no_mscale_is_folded_in_queries_stay_as_they_are(parameters: dict[str, float]) -> None:
    assert query_factors(deployment(**parameters), folded=1.0) == [1.0, 1.0, 1.0]


def test_a_layer_that_left_mscale_out_leaves_it_out_at_every_scale() -> None:
    assert query_factors(deployment(**DEEPSEEK_V3), folded=1.0) == [1.0, 1.0, 1.0]


def test_another_softmax_scale_than_the_methods_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"multiply it by 1\.87385 as rope_parameters say, got .* by 2:"):
        query_factors(deployment(**DEEPSEEK_V3), folded=2.0)


@pytest.mark.parametrize("is_running", [True, False], ids=["a step", "a dummy run"])
def test_a_token_has_the_factor_of_its_block_and_one_without_a_block_has_none(
    is_running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration.register()
    slots = {"layer": torch.tensor([9, 4, 0, -1])} if is_running else {}  # of blocks 2, 1, 0 and of none
    context = types.SimpleNamespace(slot_mapping=slots)
    monkeypatch.setattr(forward_context, "is_forward_context_available", lambda: True)
    monkeypatch.setattr(forward_context, "get_forward_context", lambda: context)
    monkeypatch.setattr(STATE, "block_size", {"layer": 4})
    monkeypatch.setattr(STATE, "block_query_factor", torch.tensor([1.0, 1.5, 2.5]))
    factors = torch.full((6,), 7.0)
    torch.ops.vllm.posenc_query_factors(torch.zeros(5, 2, 3), factors)
    assert factors[:3].tolist() == ([2.5, 1.5, 1.0] if is_running else [1.0] * 3)
    assert factors[4:].tolist() == [1.0, 7.0]
