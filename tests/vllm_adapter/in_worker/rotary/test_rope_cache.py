"""An engine is given no rotary embedding that another one of the same process was built with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import rotary_embedding

from posenc_runtime.vllm_adapter.in_worker.rotary import embedding_cache as rope_cache
from posenc_runtime.vllm_adapter.in_worker.rotary import registration


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    registration.register()
    monkeypatch.setattr(rotary_embedding, "_ROPE_DICT", {})
    rope_cache.substitute()


def built_by(engine: VllmConfig) -> Any:
    with set_current_vllm_config(engine):
        return rotary_embedding.get_rope(
            8, 64, rope_parameters={"rope_type": "default", "rope_theta": 100.0}, dtype=torch.float32
        )


def test_layers_of_one_engine_share_their_embedding_and_two_engines_none() -> None:
    one, other = VllmConfig(), VllmConfig()
    of_one = built_by(one)
    assert built_by(other) is not of_one
    assert built_by(one) is of_one


def test_what_vllm_clears_when_an_engine_ends_is_gone() -> None:
    engine = VllmConfig()
    first = built_by(engine)
    rotary_embedding._ROPE_DICT.clear()
    assert built_by(engine) is not first
