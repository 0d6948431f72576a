"""PosencConnector with connectors to other tiers of the KV cache beside it, held by vLLM's ``MultiConnector``.

vLLM's class calls every hook of each connector, ours first. Here is what differs. Tiers see a request as it was before
its crossing (``in_scheduler.tiers``). They load no more tokens than a request computes at its scale. The blocks that
they fill get the request's scale. vLLM imports this class by its name. Decision 76.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector, MultiKVConnectorMetadata

from posenc_runtime.vllm_adapter import connector
from posenc_runtime.vllm_adapter.contract.names import CONNECTOR, NIXL
from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import PosencMetadata
from posenc_runtime.vllm_adapter.in_scheduler.tiers import Tiers
from posenc_runtime.vllm_adapter.refusals.tiers import refuse_tiers, tiers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
        SupportsHMA,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from posenc_runtime.kv.budget import Speed
    from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import SchedulerHalf


@dataclasses.dataclass
class Handshakes(KVConnectorHandshakeMetadata):
    """What a worker tells the scheduler before the first step: of each connector, None where it has nothing to tell."""

    of_each: tuple[KVConnectorHandshakeMetadata | None, ...]


class PosencConnector(MultiConnector):
    """Ours first, then the tiers in the order of ``kv_connector_extra_config.connectors``."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        refuse_tiers(vllm_config.kv_transfer_config)
        super().__init__(vllm_config, role, kv_cache_config)
        self._ours = cast(connector.PosencConnector, self._connectors[0])
        self._tiers: list[KVConnectorBase_V1] = self._connectors[1:]
        names = [tier["kv_connector"] for tier in tiers_of(vllm_config.kv_transfer_config)]
        self._hands_over = {tier for tier, name in zip(self._tiers, names, strict=True) if name == NIXL}
        self._seen = Tiers()
        self._loading: dict[str, tuple[KVConnectorBase_V1, int]] = {}  # by request: who loads, and from which token on
        if role == KVConnectorRole.SCHEDULER:
            self._ours.scheduler_half.tiers = self._seen

    @property
    def scheduler_half(self) -> SchedulerHalf:
        return self._ours.scheduler_half

    @property
    def speed(self) -> Speed | None:
        return self._ours.speed

    @classmethod
    def _get_connector_classes_and_configs(cls, vllm_config: VllmConfig) -> list[tuple[Any, VllmConfig]]:
        tiers: list[tuple[Any, VllmConfig]] = super()._get_connector_classes_and_configs(vllm_config)
        return [(connector.PosencConnector, vllm_config), *tiers]

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata:
        """Of all connectors; vLLM's class passes on that of the first alone."""
        return Handshakes(tuple(each.get_handshake_metadata() for each in self._connectors))

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        told = {rank: each.of_each for rank, each in metadata.items() if isinstance(each, Handshakes)}
        for index, each in enumerate(self._connectors):
            of_it = {rank: said for rank, of_each in told.items() if (said := of_each[index]) is not None}
            if of_it or each is self._ours:
                each.set_xfer_handshake_metadata_pp_aware(of_it)

    def on_new_request(self, request: Request) -> None:
        self._ours.on_new_request(request)  # sets the salt, of which the tiers' names are made
        seen = self._seen.on_new_request(request)
        for tier in self._tiers:
            tier.on_new_request(seen)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that a tier has, or else copies of a prefix of another scale."""
        self._loading.pop(request.request_id, None)
        seen = self._seen.seen(request)
        if not seen.stands_still:
            most = self.scheduler_half.longest_prefix(request) - num_computed_tokens
            for tier in self._tiers:
                if tier in self._hands_over and not self._takes_keys(request):
                    continue
                num_tokens, is_async = tier.get_num_new_matched_tokens(seen, num_computed_tokens)
                if num_tokens is None:
                    return None, False
                if tier not in self._hands_over:  # which pairs blocks from the last one on: fewer would be others
                    num_tokens = min(num_tokens, most)
                if num_tokens > 0:
                    self._loading[request.request_id] = tier, num_computed_tokens
                    self.scheduler_half.offered.pop(request.request_id, None)
                    return num_tokens, is_async
        return self._ours.get_num_new_matched_tokens(request, num_computed_tokens)

    def _takes_keys(self, request: Request) -> bool:
        """Whether a request brings keys of another engine, of the scale at which it begins."""
        brings = bool((request.kv_transfer_params or {}).get("do_remote_prefill"))
        return brings and self.scheduler_half.may_take_keys(request)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        seen = self._seen.seen(request)
        if seen.stands_still:
            return
        loading, begin = self._loading.get(request.request_id, (None, 0))
        for tier in self._tiers:
            tier.update_state_after_alloc(seen, blocks, num_external_tokens if tier is loading else 0)
        if loading is not None and num_external_tokens:
            self.scheduler_half.loads(request, blocks.get_block_ids(), begin, begin + num_external_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        loader, seen = self._loader(request)
        group_ids: tuple[int, ...] = loader.get_loaded_kv_cache_group_ids(seen)
        return group_ids

    def get_external_cache_hit_sources(self, request: Request, num_external_tokens: int) -> Any:
        loader, seen = self._loader(request)
        return loader.get_external_cache_hit_sources(seen, num_external_tokens)

    def _loader(self, request: Request) -> tuple[KVConnectorBase_V1, Any]:
        """The connector that fills blocks of a request, and the request as that connector sees it."""
        if request.request_id in self._loading:
            return self._loading[request.request_id][0], self._seen.seen(request)
        return self._ours, request

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> MultiKVConnectorMetadata:
        ours = self._ours.build_connector_meta(scheduler_output)
        assert isinstance(ours, PosencMetadata)
        seen = self._seen.step(scheduler_output, _written(ours))
        theirs: list[KVConnectorMetadata] = [tier.build_connector_meta(seen) for tier in self._tiers]
        metadata = MultiKVConnectorMetadata(metadata=(ours, *theirs))
        if self._extra_async_saves:
            metadata.extra_async_saves = dict(self._extra_async_saves)
            self._extra_async_saves.clear()
        return metadata

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        seen = self._seen.seen(request)

        def ended(each: KVConnectorBase_V1) -> tuple[bool, dict[str, Any] | None]:
            of_each = request if each is self._ours else seen
            said: tuple[bool, dict[str, Any] | None]
            said = cast("SupportsHMA", each).request_finished_all_groups(of_each, block_ids)
            return said

        found: tuple[bool, dict[str, Any] | None] = self._aggregate_request_finished(request, ended)
        self._seen.ended(request)
        self._loading.pop(request.request_id, None)
        return found

    def register_finished_partial_tail(self, request: Request, block_ids: Any, partial_tail_offloads: Any) -> bool:
        seen = self._seen.seen(request)
        if seen.stands_still:
            return False
        accepted = [tier.register_finished_partial_tail(seen, block_ids, partial_tail_offloads) for tier in self._tiers]
        return any(accepted)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """vLLM's class looks up connectors by their names, and does not know ours."""
        made = {
            name: connector.PosencConnector.build_kv_connector_stats(stats)
            if name == CONNECTOR and isinstance(stats, dict)
            else stats
            for name, stats in (data or {}).items()
        }
        return super().build_kv_connector_stats(made or data)


def _written(metadata: PosencMetadata) -> Iterator[int]:
    for rotation in metadata.plan.rotations:
        yield from rotation.moves.target.tolist()
