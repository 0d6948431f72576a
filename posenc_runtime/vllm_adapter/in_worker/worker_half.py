"""The worker's half of the connector: before a forward pass it re-rotates keys and writes the blocks' scales."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from vllm.v1.kv_cache_interface import AttentionSpec

from posenc_runtime.kv.budget import Speed
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.step_plan import StepPlan
from posenc_runtime.vllm_adapter.contract.active import engine_of
from posenc_runtime.vllm_adapter.contract.cache_layers import attention_groups, layer_specs
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.attention.record import RECORD
from posenc_runtime.vllm_adapter.in_worker.layer_rotations import Turned, layer_rotations
from posenc_runtime.vllm_adapter.in_worker.rerotation import Rerotation, of_like_changes
from posenc_runtime.vllm_adapter.in_worker.scales_in_attention import rotate_in_attention
from posenc_runtime.vllm_adapter.in_worker.speed import measure
from posenc_runtime.vllm_adapter.in_worker.whole_model import num_weight_bytes
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE, Rotary

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class WorkerHalf:
    """Owns this worker's table of block scales, and carries out each step's plan."""

    def __init__(self, deployment: Deployment, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        self._deployment = deployment
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._rerotation: Rerotation | None = None
        self._has_begun = False
        self._found: nn.Module | None = None
        self.scaled_groups = attention_groups(kv_cache_config)  # until the model is asked which of them are rotated
        self.speed: Speed | None = None  # None until measured, and where the deployment sets the budget
        self._apply_seconds: list[float] = []
        self._rerotate_seconds: list[float] = []

    def register_kv_caches(self, kv_caches: Mapping[str, Tensor]) -> None:
        """Allocate the table of block scales, and let layers allocate what they keep beside their caches.

        Raises:
            ValueError: when no rotary embedding was built for this engine, or layers rotate by different bases.
        """
        engine = engine_of(self._vllm_config)
        rotaries = [rotary.as_built() for rotary in STATE.rotaries if rotary.engine == engine]
        if self._deployment.rotates and not rotaries:
            raise ValueError(
                "scaling needs a model with a rotary embedding that posenc can replace, but this worker built none: "
                "leave the settings of scaling out"
            )
        rotations = self._ask(rotaries)
        if rotations:
            self.scaled_groups = frozenset(
                number
                for number, group in enumerate(self._kv_cache_config.kv_cache_groups)
                if any(rotations.get(layer) is not None for layer in group.layer_names)
            )
        device = next(cache for cache in kv_caches.values() if isinstance(cache, Tensor)).device
        # One entry for each block: the first row of its scale, or, where attention rotates, the number of its scale.
        # Both are 0 for scale 1, which every block carries until a plan gives it another.
        self._table = torch.zeros(self._kv_cache_config.num_blocks, dtype=torch.int64, device=device)
        STATE.block_size = {
            layer: group.kv_cache_spec.block_size
            for group in self._kv_cache_config.kv_cache_groups
            for layer in group.layer_names
            if rotations.get(layer) is not None
        }
        for layer in self._vllm_config.compilation_config.static_forward_context.values():
            if prepare := getattr(getattr(layer, "impl", None), "prepare", None):
                prepare(layer.kv_cache)
        if rotaries and rotaries[0].is_fused:
            rotate_in_attention(self._vllm_config, STATE.block_size, rotaries, self._table)
            self._entries: Sequence[int] = range(len(self._deployment.scales))
        else:
            STATE.block_row_offset = self._table
            self._entries = rotaries[0].row_offsets if rotaries else (0,)
        if STATE.query_factors:
            STATE.block_query_factor = torch.ones(self._kv_cache_config.num_blocks, device=device)
        if self._deployment.rerotates:
            self._rerotation = Rerotation(self._vllm_config, self._kv_cache_config, kv_caches, rotations)
            self._rerotation.warm_up(len(self._deployment.scales))
        if self._deployment.measures_budget:
            self.speed = self._measure()

    def _ask(self, rotaries: Sequence[Rotary]) -> dict[str, Turned | None]:
        """What rotates the keys of each layer that caches keys.

        A drafter's layers lie in the same blocks, have the same scales, and are turned in the same crossings.

        Raises:
            ValueError: when no layer's keys are rotated by an embedding that the deployment scales, or embeddings have
                their scales in different rows.
            Unsupported: as ``layer_rotations``.
        """
        layers = {
            name: layer
            for name, layer in _layers_with_keys(self._vllm_config, self._kv_cache_config)
            if getattr(layer, "kv_sharing_target_layer_name", None) is None
        }
        if not rotaries:
            return {}
        if len({rotary.row_offsets for rotary in rotaries}) > 1:
            raise ValueError(
                "a block has one entry for its scale, but rotary embeddings of this model have scales in different "
                f"rows, {', '.join(sorted({str(rotary.row_offsets) for rotary in rotaries}))}: serve it without scaling"
            )
        if rotaries[0].is_fused or len(self._deployment.scales) == 1:
            return {name: Turned(rotaries[0], 0, rotaries[0].is_neox_style) for name in layers}
        of_drafter = _of_drafter(layers)
        found = layer_rotations(
            self._model(),
            self._vllm_config,
            {name: layer for name, layer in layers.items() if name not in of_drafter},
            rotaries,
            has_other_rotations=rotaries[0].has_other_rotations,
        )
        if not any(found.values()):
            raise ValueError(
                "scaling needs a layer whose keys the model's rotary embedding rotates, but no layer of this model "
                "uses that embedding: serve this model without scaling"
            )
        if of_drafter:
            assert STATE.drafter is not None
            try:
                found |= layer_rotations(
                    STATE.drafter, self._vllm_config, of_drafter, rotaries, has_other_rotations=False
                )
            except Unsupported as error:
                raise Unsupported(
                    "speculative_config.model must rotate as the model does where requests have scales, but of the "
                    f"drafter this holds: {error}. Or choose another drafter"
                ) from None
        return found

    def _model(self) -> nn.Module:
        """The model around the rotary embeddings.

        Raises:
            ValueError: when this worker did not see it built.
        """
        if self._found is None:
            if STATE.model is None:
                raise ValueError(
                    "scaling has to see the worker build the whole model, but this worker did not build it: start "
                    "vLLM's own worker, which builds the model itself"
                )
            layers = self._vllm_config.compilation_config.static_forward_context
            of_drafter = _of_drafter(layers)
            self._found = STATE.model.found(layer for name, layer in layers.items() if name not in of_drafter)
            STATE.forget_model()
        return self._found

    def _measure(self) -> Speed:
        """Measure how fast this worker turns keys and reads its weights."""
        assert self._rerotation is not None, "only a deployment that re-rotates has to know"
        return measure(self._rerotation, num_weight_bytes(self._model()), self._kv_cache_config.num_blocks)

    def apply(self, plan: StepPlan) -> None:
        """Carry out a step's plan, on the runner's current stream, so that the forward pass sees the result."""
        if not self._has_begun:
            self._has_begun = True
            RECORD.forget()
        if plan.rotations:
            assert self._rerotation is not None, "only a deployment that re-rotates plans rotations"
            began = time.perf_counter()
            for rotation in of_like_changes(plan.rotations):
                self._rerotation.apply(rotation)
            self._rerotate_seconds.append(time.perf_counter() - began)
        if not plan.block_scales:
            return
        began = time.perf_counter()
        # One copy to the device and one launch, for any number of scales.
        pairs = [
            (block_id, self._entries[scale_index])
            for scale_index, block_ids in plan.block_scales.items()
            for block_id in block_ids
        ]
        blocks_and_entries = torch.tensor(pairs, dtype=torch.int64, pin_memory=self._table.is_cuda)
        blocks, entries = blocks_and_entries.to(self._table.device, non_blocking=True).unbind(1)
        self._table.index_copy_(0, blocks, entries)
        if STATE.block_query_factor is not None:
            for scale_index, block_ids in plan.block_scales.items():
                STATE.block_query_factor[block_ids] = STATE.query_factors[scale_index]
        self._apply_seconds.append(time.perf_counter() - began)

    def take_report(self) -> dict[str, Any]:
        """What happened since the last call, in the form of ``counts.merged``."""
        taken = {"apply_seconds": self._apply_seconds, "rerotate_seconds": self._rerotate_seconds}
        self._apply_seconds, self._rerotate_seconds = [], []
        return {name: seconds for name, seconds in taken.items() if seconds} | RECORD.take()


def _of_drafter(layers: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the layers that are part of the model that drafts tokens."""
    if STATE.drafter is None:
        return {}
    parts = set(STATE.drafter.modules())
    return {name: layer for name, layer in layers.items() if layer in parts}


def _layers_with_keys(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> Iterator[tuple[str, Any]]:
    """The layers of this worker that cache the keys of tokens, by name; those with recurrent states do not."""
    layers = vllm_config.compilation_config.static_forward_context
    for group in kv_cache_config.kv_cache_groups:
        for name, spec in layer_specs(group).items():
            if isinstance(spec, AttentionSpec) and name in layers:
                yield name, layers[name]
