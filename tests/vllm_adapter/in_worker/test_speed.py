"""What a worker measures of itself when its caches are there."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec

from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary.rerotation import BlockMoves
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_worker import cpu_key_order, speed
from posenc_runtime.vllm_adapter.in_worker.layer_rotations import Turned
from posenc_runtime.vllm_adapter.in_worker.rerotation import Rerotation
from posenc_runtime.vllm_adapter.in_worker.worker_state import Rotary

LINEAR = Deployment(rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=256, max_model_len=512)
SPEC = RotarySpec(rotary_dim=8, rope_theta=100.0, original_max_position_embeddings=256)
ROTARY = Rotary(deployment=LINEAR, head_dim=8, own=SPEC, is_neox_style=True)


@pytest.fixture(autouse=True)
def keys_lie_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_key_order, "cpu_key_order", lambda *_: None)


def rerotation(num_blocks: int, **layers_of_a_group: Sequence[str]) -> tuple[Rerotation, dict[str, Tensor]]:
    """Groups of layers that have blocks of their own; a block holds 4 tokens, 256 bytes in each layer."""
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype=torch.float32)
    names = [name for layers in layers_of_a_group.values() for name in layers]
    caches = {name: torch.zeros(num_blocks, 1, 4, 16) for name in names}
    layers = {name: types.SimpleNamespace(isa="") for name in names}
    vllm_config: Any = types.SimpleNamespace(compilation_config=types.SimpleNamespace(static_forward_context=layers))
    groups = [KVCacheGroupSpec(list(layers), spec) for layers in layers_of_a_group.values()]
    kv_cache_config: Any = types.SimpleNamespace(kv_cache_groups=groups, num_blocks=num_blocks)
    turned = dict.fromkeys(names, Turned(ROTARY, 0, is_neox_style=True))
    return Rerotation(vllm_config, kv_cache_config, caches, turned), caches


class Clock:
    """Time goes by only when keys are turned, or memory is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, seconds: Sequence[float] = (1.0,)) -> None:
        self.now = 0.0
        self.moves: list[list[tuple[int, int]]] = []
        self._seconds = list(seconds)
        stock = torch.Tensor.amax

        def read(memory: Tensor) -> Tensor:
            self.now += 1e-9 * memory.nbytes
            return stock(memory)

        def rerotate(kv_caches: Any, moves: BlockMoves, change: Any, layout: Any) -> None:
            assert change.phases.any()
            self.moves.append(list(zip(moves.sources.tolist(), moves.targets.tolist(), strict=True)))
            self.now += self._seconds[len(self.moves) % len(self._seconds)] * len(moves) * len(kv_caches)

        monkeypatch.setattr(speed, "time", types.SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(torch.Tensor, "amax", read)
        monkeypatch.setattr(ops, "rerotate", rerotate)


def test_a_token_takes_its_part_of_the_fastest_of_a_few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, seconds=[8.0, 2.0, 3.0])  # a block in a layer
    found = speed.measure(rerotation(9, one=["a", "b"])[0], 500, 9)
    assert clock.moves == 3 * [[(1, 5), (2, 6), (3, 7), (4, 8)]]
    assert found.token_seconds == pytest.approx(2 * 2.0 / 4)
    assert found.block_tokens == 4


def test_weights_take_as_long_as_as_much_of_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    found = speed.measure(rerotation(9, one=["a"])[0], 12_345, 9)
    assert found.weight_bytes == 12_345
    assert found.weights_seconds == pytest.approx(12_345e-9)


def test_of_groups_with_blocks_of_their_own_the_slowest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    found = speed.measure(rerotation(5, small=["a"], large=["b", "c", "d"])[0], 500, 5)
    assert found.token_seconds == pytest.approx(3 / 4)


def test_no_more_is_turned_than_is_needed_for_the_caches_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(speed, "_TURNED_BYTES", {"cpu": 3 * 256})
    speed.measure(rerotation(100, one=["a"])[0], 500, 100)
    assert clock.moves[0] == [(1, 4), (2, 5), (3, 6)]


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_a_pool_without_room_for_a_copy_has_its_null_block_turned(
    num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    speed.measure(rerotation(num_blocks, one=["a"])[0], 500, num_blocks)
    assert clock.moves == 3 * [[(0, 0)]]


def test_caches_that_nobody_has_filled_stay_as_they_are() -> None:
    made, caches = rerotation(9, one=["a", "b"])
    found = speed.measure(made, 500, 9)
    assert found.token_seconds > 0
    assert not any(cache.any() for cache in caches.values())
