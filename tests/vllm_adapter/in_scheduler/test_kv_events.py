"""Events of the KV cache, for routers: each block has a name that no other content has."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import BlockRemoved, BlockStored

from posenc_runtime.kv.deployment import Deployment
from tests.vllm_adapter.in_scheduler.model_core import Asked, EngineCore

BLOCK_SIZE = 4


def prompt(seed: int, num_tokens: int) -> list[int]:
    return [(seed * 31 + 7 * number) % 500 for number in range(num_tokens)]


@pytest.mark.parametrize("prefix_reuse", ["exact", "rerotate", "continue"])
def test_every_name_has_one_content_and_every_parent_was_stored(
    prefix_reuse: Any, vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests cross at the same length. A third one has a prefix of theirs, which it computes, copies or goes on
    from."""
    events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    monkeypatch.setattr(vllm_config, "kv_events_config", events_config)
    deployment = Deployment(
        rope_type="yarn",
        scales=(1.0, 2.0, 4.0),
        original_max_position_embeddings=32,
        max_model_len=128,
        headroom_tokens=4,
        prefix_reuse=prefix_reuse,
        rerotate_budget_tokens=1000,
    )
    core = EngineCore(
        vllm_config, deployment, block_size=BLOCK_SIZE, num_blocks=200, model_runner=1, depth=1, ahead=False
    )
    events: list[Any] = []
    manager = core.scheduler.kv_cache_manager
    take = manager.take_events

    def take_events() -> Any:
        taken = take()
        events.extend(taken or [])
        return taken

    monkeypatch.setattr(manager, "take_events", take_events)
    core.serve(
        [
            Asked(0, prompt(1, 24), 3),
            Asked(0, prompt(3, 24), 24),
            Asked(0, prompt(4, 24), 24),
            Asked(40, prompt(1, 24) + prompt(9, 22), 3),
        ]
    )
    assert any(said["crossings"] for said in core.responses.values())
    stored = [event for event in events if isinstance(event, BlockStored)]
    content: dict[Any, tuple[int, ...]] = {}
    for event in stored:
        for number, name in enumerate(event.block_hashes):
            tokens = tuple(event.token_ids[number * BLOCK_SIZE : (number + 1) * BLOCK_SIZE])
            assert content.setdefault(name, tokens) == tokens
        assert event.parent_block_hash is None or event.parent_block_hash in content
    removed = {name for event in events if isinstance(event, BlockRemoved) for name in event.block_hashes}
    assert removed <= content.keys()
