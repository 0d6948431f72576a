"""Re-rotation in a worker: carries out a step's rotations on the KV caches of the worker's layers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange
from posenc_runtime.kv.crossing import Rotation
from posenc_runtime.kv.moves import BlockMove, Moves
from posenc_runtime.vllm_adapter.worker.cache_layers import layer_specs
from posenc_runtime.vllm_adapter.worker.worker_state import Rotary

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec


@dataclasses.dataclass(frozen=True)
class _Caches:
    """Caches of one KV cache group with the same key layout.

    Attributes:
        group: number of the KV cache group.
        split: how many blocks of these caches make one block of the scheduler: vLLM's kernels may use smaller blocks.
    """

    group: int
    kv_caches: list[Tensor]
    layout: KeyLayout
    split: int


def of_like_changes(rotations: Iterable[Rotation]) -> list[Rotation]:
    """Join the rotations of a step that have the same two scales, so that one launch does them all.

    Their order is free, because a request has one rotation in a step and different requests move different blocks.
    """
    moves: dict[tuple[int, int], list[Moves]] = {}
    for rotation in rotations:
        moves.setdefault((rotation.from_index, rotation.to_index), []).append(rotation.moves)
    return [
        Rotation(from_index=from_index, to_index=to_index, moves=Moves.joined(parts))
        for (from_index, to_index), parts in moves.items()
    ]


class Rerotation:
    """Holds the caches of every KV cache group, their key layouts, and the angles from each scale to each other.

    Raises:
        ValueError: when a backend stores keys in an unknown or unsupported layout, or layers rotate differently.
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
                f"{len(rotaries)} that differ: set on_crossing to recompute or pin, and prefix_reuse to exact"
            )
        self._rotary = rotaries[0]
        self._layers = vllm_config.compilation_config.static_forward_context
        self._caches = [
            caches
            for number, group in enumerate(kv_cache_config.kv_cache_groups)
            for caches in self._by_layout(kv_caches, number, group)
        ]
        for caches in self._caches:
            caches.layout.check(caches.kv_caches)
        self.device = next(iter(kv_caches.values())).device
        self._changes: dict[tuple[int, int], ScaleChange] = {}

    def warm_up(self) -> None:
        """Turn vLLM's null block, which nobody reads, between all scales: later no request waits for a compiler."""
        moves = Moves.of(
            BlockMove(group=number, source=0, target=0, first_position=0, num_tokens=1) for number in self.groups
        )
        for from_index, to_index in itertools.permutations(range(len(self._rotary.deployment.scales)), 2):
            self.apply(Rotation(from_index=from_index, to_index=to_index, moves=moves))

    @property
    def groups(self) -> list[int]:
        """Numbers of the KV cache groups whose keys are turned."""
        return sorted({caches.group for caches in self._caches})

    def block_tokens(self, group: int) -> int:
        """Tokens in one block of the scheduler."""
        return next(caches.layout.block_size * caches.split for caches in self._of(group))

    def block_bytes(self, group: int) -> int:
        """Bytes of one block of the scheduler: keys and values of all layers of a group."""
        return sum(cache[0].nbytes * caches.split for caches in self._of(group) for cache in caches.kv_caches)

    def memory(self) -> Iterator[Tensor]:
        """The memory of all caches as bytes; memory that caches share is yielded once."""
        storages = {cache.untyped_storage().data_ptr(): cache for caches in self._caches for cache in caches.kv_caches}
        for cache in storages.values():
            yield torch.empty(0, dtype=torch.uint8, device=self.device).set_(cache.untyped_storage())

    def _of(self, group: int) -> Iterator[_Caches]:
        return (caches for caches in self._caches if caches.group == group)

    def apply(self, rotation: Rotation) -> None:
        """Carry out a rotation, on the runner's current stream."""
        change = self._change(rotation.from_index, rotation.to_index)
        for caches in self._caches:
            table = torch.from_numpy(_parts(rotation.moves, caches))
            if not table.numel():
                continue
            if self.device.type == "cuda":
                table = table.pin_memory()
            sources, targets, first_positions = table.to(self.device, non_blocking=True).unbind()
            ops.rerotate(caches.kv_caches, BlockMoves(sources, targets, first_positions), change, caches.layout)

    def _change(self, from_index: int, to_index: int) -> ScaleChange:
        key = (from_index, to_index)
        if key not in self._changes:
            change = ScaleChange.between(
                self._rotary.frequencies(from_index),
                self._rotary.frequencies(to_index),
                factor_on_keys=self._rotary.factor_on_keys,
            )
            # Kept, because a copy from pageable memory waits for all work of the device.
            self._changes[key] = dataclasses.replace(change, phases=change.phases.to(self.device))
        return self._changes[key]

    def _by_layout(self, kv_caches: Mapping[str, Tensor], number: int, group: KVCacheGroupSpec) -> Iterator[_Caches]:
        """The caches of a group by key layout. A cache that several layers share comes once, so it is turned once."""
        specs = layer_specs(group)
        distinct: dict[int, str] = {}
        for layer in group.layer_names:
            if layer in kv_caches:
                distinct.setdefault(kv_caches[layer].data_ptr(), layer)
        layers_of: dict[KVCacheSpec, list[str]] = {}
        for layer in distinct.values():
            layers_of.setdefault(specs[layer], []).append(layer)
        for spec, layers in layers_of.items():
            layout = self._layout(layers[0], spec, kv_caches[layers[0]])
            yield _Caches(number, [kv_caches[layer] for layer in layers], layout, spec.block_size // layout.block_size)

    def _layout(self, layer: str, spec: KVCacheSpec, cache: Tensor) -> KeyLayout:
        if cache.dim() != 4 or cache.shape[1] != spec.num_kv_heads or spec.block_size % cache.shape[2]:
            raise ValueError(
                f"re-rotation needs KV caches of the shape [num_blocks, {spec.num_kv_heads}, {spec.block_size} or a "
                f"divisor of it, {2 * spec.head_size}], got {list(cache.shape)} for {layer}: set on_crossing to "
                "recompute or pin, and prefix_reuse to exact"
            )
        if self._rotary.head_dim != spec.head_size:
            raise ValueError(
                f"re-rotation needs a rotary embedding that gets whole heads, but {layer} caches heads of "
                f"{spec.head_size} elements, and the rotary embedding gets {self._rotary.head_dim}: set on_crossing to "
                "recompute or pin, and prefix_reuse to exact"
            )
        block_size, order = cache.shape[2], None
        if cache.device.type == "cpu":
            from posenc_runtime.vllm_adapter.worker.cpu_key_order import cpu_key_order

            order = cpu_key_order(spec.num_kv_heads, block_size, spec.head_size, cache.dtype, self._layers[layer].isa)
        return KeyLayout(
            block_size=block_size,
            head_dim=spec.head_size,
            rotary_dim=self._rotary.own.rotary_dim,
            is_neox_style=self._rotary.is_neox_style,
            order=order,
        )


def _parts(moves: Moves, caches: _Caches) -> NDArray[np.int64]:
    """Source, target and first position of each block to move in these caches, ``[3, num_blocks]``."""
    is_ours = moves.group == caches.group
    part = np.arange(caches.split)
    sources, targets, first_positions = (
        (column[is_ours, None] * times + part * step).ravel()
        for column, times, step in (
            (moves.source, caches.split, 1),
            (moves.target, caches.split, 1),
            (moves.first_position, 1, caches.layout.block_size),
        )
    )
    return np.stack((sources, targets, first_positions))
