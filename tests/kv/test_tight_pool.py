"""A request in a pool that holds it and little more."""

from __future__ import annotations

import pytest

from posenc_runtime.kv.deployment import Deployment
from tests.kv import model_crossings
from tests.kv.model_engine import ModelEngine

MAX_STEPS = 200


def replay_in_a_tight_pool() -> ModelEngine:
    """An engine whose only request was preempted past its first crossing: there is room for its next tokens, or for
    copies of what the prefix cache holds, but not for both."""
    deployment = Deployment(
        rope_type="linear",
        scales=(1.0, 2.0, 4.0),
        original_max_position_embeddings=6,
        max_model_len=14,
        headroom_tokens=1,
        on_crossing="rerotate",
        rerotate_budget_tokens=20,
    )
    engine = ModelEngine(deployment, block_size=1, num_blocks=14, max_running=2, late=False, replaces_as_new=False)
    engine.admit([0, 1, 1, 0], max_tokens=10, asked=None)
    while len(engine.requests[0].tokens) < 11:
        engine.step(16)
    engine.preempt(engine.requests[0])
    for _ in range(MAX_STEPS):
        engine.step(16)
    return engine


def test_a_replay_is_not_stopped_by_its_own_copies() -> None:
    assert not replay_in_a_tight_pool().requests


def test_without_room_for_its_next_tokens_a_replay_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = model_crossings.blocks_to_copy
    monkeypatch.setattr(
        model_crossings, "blocks_to_copy", lambda held, **room: decide(held, **{**room, "num_needed": 0})
    )
    assert replay_in_a_tight_pool().requests
