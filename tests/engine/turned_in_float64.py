"""An engine of ours whose keys are turned by float64 in plain torch: for families that transformers computes otherwise.

What attention wrote is noted beside the cache, so that no key is read where it is packed; and vLLM's own kernel writes
what was turned. Which blocks move, and when, is the product's.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

from posenc_runtime.vllm_adapter.in_worker import rerotation
from tests.engine.families_oracle import SCALES, Rotations
from tests.engine.run_engine import main

FAMILY = "POSENC_TEST_FAMILY"
_store = _custom_ops.cpu_attn_reshape_and_cache
_NOTED: dict[int, tuple[Tensor, Tensor]] = {}


@functools.wraps(_store)
def _noting(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor, *of: Any, **how: Any
) -> None:
    """Write keys and values ``[num_tokens, num_kv_heads, head_dim]`` into a cache, and note them by slot."""
    _store(key, value, key_cache, value_cache, slots, *of, **how)
    if key_cache.data_ptr() not in _NOTED:
        num_blocks, num_kv_heads, block_size, head_dim = key_cache.shape
        room = torch.zeros(2, num_blocks * block_size, num_kv_heads, head_dim, dtype=key_cache.dtype)
        _NOTED[key_cache.data_ptr()] = (room[0], room[1])
    keys, values = _NOTED[key_cache.data_ptr()]
    keys[slots], values[slots] = key[: len(slots)], value[: len(slots)]


class TurnedInFloat64(rerotation.Rerotation):
    def __init__(self, vllm_config: Any, kv_cache_config: Any, kv_caches: Any, rotations: Any) -> None:
        super().__init__(vllm_config, kv_cache_config, kv_caches, rotations)
        self._of_family = Rotations(os.environ[FAMILY], in_vllm=True)
        self._by_name = kv_caches
        self._names = [group.layer_names for group in kv_cache_config.kv_cache_groups]

    def apply(self, rotation: Any) -> None:
        moves, scales = rotation.moves, (SCALES[rotation.from_index], SCALES[rotation.to_index])
        for group, source, target, first_position, num_tokens in zip(
            *(
                getattr(moves, column).tolist()
                for column in ("group", "source", "target", "first_position", "num_tokens")
            ),
            strict=True,
        ):
            for name in self._names[group]:
                if name in self._by_name and not isinstance(self._by_name[name], list):
                    self._move(name, source, target, first_position, num_tokens, scales)

    def _move(
        self, name: str, source: int, target: int, first_position: int, num_tokens: int, scales: tuple[int, int]
    ) -> None:
        cache = self._by_name[name]
        num_blocks, num_kv_heads, block_size, _ = cache.shape
        key_cache, value_cache = cache.view(num_blocks, num_kv_heads, 2 * block_size, -1).chunk(2, dim=2)
        if key_cache.data_ptr() not in _NOTED:  # of no request: the engine warms up
            return
        keys, values = _NOTED[key_cache.data_ptr()]
        assert self._num_blocks == num_blocks, "the test's blocks are those of the kernel"
        of_source = torch.arange(source * block_size, source * block_size + num_tokens)
        slots = of_source + (target - source) * block_size
        moved = keys[of_source]
        if int(re.findall(r"layers\.(\d+)", name)[0]) in self._of_family.layers:
            positions = torch.arange(first_position, first_position + num_tokens)
            moved = self._of_family.turned(moved.transpose(0, 1), positions, *scales).transpose(0, 1).contiguous()
        isa = _get_attn_isa(cache.dtype, block_size, key_cache.shape[-1])
        _noting(moved, values[of_source], key_cache, value_cache, slots, isa)


if __name__ == "__main__":
    from posenc_runtime.vllm_adapter.in_worker import worker_half
    from tests.engine import turned_in_float64

    _custom_ops.cpu_attn_reshape_and_cache = turned_in_float64._noting
    worker_half.Rerotation = turned_in_float64.TurnedInFloat64  # type: ignore[misc]
    main()
