"""Re-rotation in a worker: carries out a step's rotations on the KV caches of the worker's layers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange
from posenc_runtime.kv.crossing import Rotation
from posenc_runtime.kv.moves import BlockMove, Moves
from posenc_runtime.vllm_adapter.contract.cache_layers import layer_specs
from posenc_runtime.vllm_adapter.contract.cached_keys import FLOAT8, OWN_SCALES
from posenc_runtime.vllm_adapter.in_worker.layer_rotations import Turned
from posenc_runtime.vllm_adapter.in_worker.worker_state import Rotary

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec


@dataclasses.dataclass(frozen=True)
class _Caches:
    """Caches of one KV cache group whose keys are stored and rotated alike.

    Attributes:
        group: number of the KV cache group.
        turned: what rotates the keys; None where no scale changes them, so that they are only ever copied.
        layout: where keys lie; None where they are only ever copied.
        block_tokens: tokens in one block of the scheduler.
        split: how many blocks of these caches make one block of the scheduler: vLLM's kernels may use smaller blocks.
    """

    group: int
    kv_caches: list[Tensor]
    turned: Turned | None
    layout: KeyLayout | None
    block_tokens: int
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
    """Holds the caches of the KV cache groups with keys, their key layouts, and the angles between all scales.

    Args:
        rotations: what rotates the keys of each layer (``layer_rotations``).

    Raises:
        ValueError: when a backend stores keys in an unknown or unsupported layout.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        kv_caches: Mapping[str, Tensor],
        rotations: Mapping[str, Turned | None],
    ) -> None:
        self._rotations = rotations
        self._layers = vllm_config.compilation_config.static_forward_context
        self._num_blocks = kv_cache_config.num_blocks
        self._caches = [
            caches
            for number, group in enumerate(kv_cache_config.kv_cache_groups)
            for caches in self._alike(kv_caches, number, group)
        ]
        for caches in self._caches:
            if caches.layout is not None:
                caches.layout.check(caches.kv_caches)
        self.device = self._caches[0].kv_caches[0].device
        self._changes: list[tuple[Rotary, dict[tuple[int, int], ScaleChange]]] = []

    def warm_up(self, num_scales: int) -> None:
        """Turn vLLM's null block, which nobody reads, between all scales: later no request waits for a compiler."""
        moves = Moves.of(
            BlockMove(group=number, source=0, target=0, first_position=0, num_tokens=1) for number in self.groups
        )
        for from_index, to_index in itertools.permutations(range(num_scales), 2):
            self.apply(Rotation(from_index=from_index, to_index=to_index, moves=moves))

    @property
    def groups(self) -> list[int]:
        """Numbers of the KV cache groups whose keys are turned."""
        return sorted({caches.group for caches in self._caches if caches.turned is not None})

    def block_tokens(self, group: int) -> int:
        """Tokens in one block of the scheduler."""
        return next(caches.block_tokens for caches in self._of(group))

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
        for caches in self._caches:
            parts = _parts(rotation.moves, caches)
            if caches.turned is None:
                parts = parts[:, parts[0] != parts[1]]
            if not parts.size:
                continue
            table = torch.from_numpy(parts)
            if self.device.type == "cuda":
                table = table.pin_memory()
            sources, targets, first_positions = table.to(self.device, non_blocking=True).unbind()
            if caches.turned is None or caches.layout is None:
                for cache in caches.kv_caches:
                    cache[targets] = cache[sources]
            else:
                change = self._change(caches.turned.rotary, rotation.from_index, rotation.to_index)
                ops.rerotate(caches.kv_caches, BlockMoves(sources, targets, first_positions), change, caches.layout)

    def _change(self, rotary: Rotary, from_index: int, to_index: int) -> ScaleChange:
        changes = next((known for of, known in self._changes if of == rotary), None)
        if changes is None:
            changes = {}
            self._changes.append((rotary, changes))
        key = (from_index, to_index)
        if key not in changes:
            change = ScaleChange.between(
                rotary.frequencies(from_index),
                rotary.frequencies(to_index),
                factor_on_keys=rotary.factor_on_keys,
            )
            # Kept, because a copy from pageable memory waits for all work of the device.
            changes[key] = dataclasses.replace(change, phases=change.phases.to(self.device))
        return changes[key]

    def _alike(self, kv_caches: Mapping[str, Tensor], number: int, group: KVCacheGroupSpec) -> Iterator[_Caches]:
        """The caches of a group by key layout. A cache that several layers share comes once, so it is turned once."""
        specs = layer_specs(group)
        distinct: dict[int, str] = {}
        for layer in group.layer_names:
            if layer in self._rotations and layer in kv_caches:
                distinct.setdefault(kv_caches[layer].data_ptr(), layer)
        alike: list[tuple[KVCacheSpec, Turned | None, list[str]]] = []
        for layer in distinct.values():
            spec, turned = specs[layer], self._rotations[layer]
            layers = next((layers for *kind, layers in alike if kind == [spec, turned]), None)
            if layers is None:
                alike.append((spec, turned, [layer]))
            else:
                layers.append(layer)
        for spec, turned, layers in alike:
            caches = [_by_heads(kv_caches[layer], spec) for layer in layers]
            if turned is not None:
                caches = [self._as_numbers(cache, layer) for cache, layer in zip(caches, layers, strict=True)]
            layout = None if turned is None else self._layout(layers[0], spec, turned, caches[0])
            yield _Caches(number, caches, turned, layout, spec.block_size, len(caches[0]) // self._num_blocks)

    def _as_numbers(self, cache: Tensor, layer: str) -> Tensor:
        """A cache in the type of its numbers; vLLM calls float8 uint8."""
        dtype = (FLOAT8 | OWN_SCALES).get(self._cached_in(layer))
        return cache if dtype is None else cache.view(getattr(torch, dtype))

    def _cached_in(self, layer: str) -> str:
        asked: str = getattr(self._layers[layer], "kv_cache_dtype", "auto")
        return asked

    def _layout(self, layer: str, spec: KVCacheSpec, turned: Turned, cache: Tensor) -> KeyLayout:
        if cache.dim() != 4 or cache.shape[1] != spec.num_kv_heads or spec.block_size % cache.shape[2]:
            raise ValueError(
                f"a cache must be [num_blocks, {spec.num_kv_heads}, {spec.block_size} or a part of it, width of keys "
                f"and values], got {list(cache.shape)} for {layer}"
            )
        block_size, order = cache.shape[2], None
        if cache.device.type == "cpu" and (isa := getattr(self._layers[layer], "isa", None)) is not None:
            from posenc_runtime.vllm_adapter.in_worker.cpu_key_order import cpu_key_order

            order = cpu_key_order(spec.num_kv_heads, block_size, spec.head_size, cache.dtype, isa)
        return KeyLayout(
            block_size=block_size,
            head_dim=spec.head_size,
            rotary_dim=turned.rotary.own.rotary_dim,
            rotary_offset=turned.offset,
            row_dim=cache.shape[3],
            is_neox_style=turned.is_neox_style,
            order=order,
            has_own_scales=self._cached_in(layer) in OWN_SCALES,
        )


def _by_heads(cache: Tensor, spec: KVCacheSpec) -> Tensor:
    """A cache with a dimension for KV heads, which vLLM leaves out where there is one (MLA)."""
    return cache.unsqueeze(1) if isinstance(spec, MLAAttentionSpec) and cache.dim() == 3 else cache


def _parts(moves: Moves, caches: _Caches) -> NDArray[np.int64]:
    """Source, target and first position of each block to move in these caches, ``[3, num_blocks]``."""
    is_ours = moves.group == caches.group
    part = np.arange(caches.split)
    sources, targets, first_positions = (
        (column[is_ours, None] * times + part * step).ravel()
        for column, times, step in (
            (moves.source, caches.split, 1),
            (moves.target, caches.split, 1),
            (moves.first_position, 1, caches.block_tokens // caches.split),
        )
    )
    return np.stack((sources, targets, first_positions))
