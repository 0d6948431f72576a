"""Re-rotation in a worker: a step's rotations carried out on the KV caches of its layers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rerotation import BlockMoves, KeyLayout, ScaleChange
from posenc_runtime.kv.crossing import BlockMove, Rotation
from posenc_runtime.vllm_adapter.worker_state import Rotary

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec


class Rerotation:
    """Knows the caches of every KV cache group, how their keys lie, and how to get from one scale to another.

    Raises:
        ValueError: when the keys of a backend cannot be reached, are not stored as they must be, or layers rotate
            differently.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        kv_caches: Mapping[str, Tensor],
        rotaries: Sequence[Rotary],
    ) -> None:
        if any(rotary != rotaries[0] for rotary in rotaries):
            raise ValueError(
                "scaling.on_crossing rerotate needs one rotary embedding for all layers, but this model built "
                f"{len(rotaries)} that differ: set on_crossing to recompute or pin"
            )
        self._rotary = rotaries[0]
        self._layers = vllm_config.compilation_config.static_forward_context
        self._groups = [
            (_distinct(kv_caches, group), self._layout(kv_caches, group)) for group in kv_cache_config.kv_cache_groups
        ]
        for caches, layout in self._groups:
            layout.check(caches)
        self._device = next(iter(kv_caches.values())).device
        self._changes: dict[tuple[int, int], ScaleChange] = {}

    def warm_up(self) -> None:
        """Turn vLLM's null block, which nobody reads, as any rotation would: no request waits for a compiler then."""
        moves = tuple(
            BlockMove(group=number, source=0, target=0, first_position=0, num_tokens=layout.block_size)
            for number, (_, layout) in enumerate(self._groups)
        )
        for from_index, to_index in itertools.permutations(range(len(self._rotary.deployment.scales)), 2):
            self.apply(Rotation(from_index=from_index, to_index=to_index, moves=moves))

    def apply(self, rotation: Rotation) -> None:
        """Carry out a rotation, on the runner's current stream."""
        change = self._change(rotation.from_index, rotation.to_index)
        for number, (kv_caches, layout) in enumerate(self._groups):
            moves = [move for move in rotation.moves if move.group == number]
            if not moves:
                continue
            device = kv_caches[0].device
            table = torch.tensor(
                [[move.source, move.target, move.first_position] for move in moves],
                dtype=torch.int64,
                pin_memory=device.type == "cuda",
            ).to(device, non_blocking=True)
            sources, targets, first_positions = table.T.contiguous().unbind()
            ops.rerotate(kv_caches, BlockMoves(sources, targets, first_positions), change, layout)

    def _change(self, from_index: int, to_index: int) -> ScaleChange:
        key = (from_index, to_index)
        if key not in self._changes:
            change = ScaleChange.between(
                self._rotary.frequencies(from_index),
                self._rotary.frequencies(to_index),
                factor_on_keys=self._rotary.factor_on_keys,
            )
            # Once, for a copy from pageable memory waits for all that the device has to do.
            self._changes[key] = dataclasses.replace(change, phases=change.phases.to(self._device))
        return self._changes[key]

    def _layout(self, kv_caches: Mapping[str, Tensor], group: KVCacheGroupSpec) -> KeyLayout:
        spec = group.kv_cache_spec
        layer = group.layer_names[0]
        cache = kv_caches[layer]
        order = None
        if cache.device.type == "cpu":
            from posenc_runtime.vllm_adapter.cpu_key_order import cpu_key_order

            order = cpu_key_order(
                spec.num_kv_heads, spec.block_size, spec.head_size, cache.dtype, self._layers[layer].isa
            )
        return KeyLayout(
            block_size=spec.block_size,
            head_dim=spec.head_size,
            rotary_dim=self._rotary.own.rotary_dim,
            is_neox_style=self._rotary.is_neox_style,
            order=order,
        )


def _distinct(kv_caches: Mapping[str, Tensor], group: KVCacheGroupSpec) -> list[Tensor]:
    """The caches of a group's layers. Layers that share one cache are in there once: it must be rotated once."""
    found: dict[int, Tensor] = {}
    for layer in group.layer_names:
        if layer in kv_caches:
            found.setdefault(kv_caches[layer].data_ptr(), kv_caches[layer])
    return list(found.values())
