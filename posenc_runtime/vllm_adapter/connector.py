"""PosencConnector: the channel from the scheduler to the workers and to the metrics.

Every method delegates to the half of its process: ``SchedulerHalf`` or ``WorkerHalf``.

The table of block scales is written in ``bind_connector_metadata`` and not in ``start_load_kv``, which vLLM runs
after the forward unless a request loads keys. Decision 5.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.kv_cache_interface import AttentionSpec

from posenc_runtime.kv.budget import Speed, measured_budget
from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.contract.active import KEY, deployment_of
from posenc_runtime.vllm_adapter.contract.cache_layers import attention_groups, layer_specs
from posenc_runtime.vllm_adapter.in_scheduler.arrivals import salt_on_arrival
from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import PosencMetadata, SchedulerHalf
from posenc_runtime.vllm_adapter.in_worker.answers import let_one_answer
from posenc_runtime.vllm_adapter.in_worker.worker_half import WorkerHalf
from posenc_runtime.vllm_adapter.metrics.prometheus import PosencPromMetrics
from posenc_runtime.vllm_adapter.metrics.stats import PosencStats
from posenc_runtime.vllm_adapter.refusals.cache_groups import refuse_cache_groups
from posenc_runtime.vllm_adapter.refusals.cpu_attention import refuse_head_size
from posenc_runtime.vllm_adapter.refusals.engine import refuse_unsupported

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


@dataclasses.dataclass
class PosencHandshake(KVConnectorHandshakeMetadata):
    """What a worker knows of its layers, on its way to the scheduler.

    Attributes:
        speed: None where the deployment measures no budget.
        scaled_groups: numbers of the KV cache groups whose keys the deployment scales.
    """

    speed: Speed | None
    scaled_groups: frozenset[int]


class PosencConnector(KVConnectorBase_V1, SupportsHMA):
    """Tells the workers each block's scale and which blocks to move; tells metrics and answers what happened."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        releases.verify()
        deployment = deployment_of(vllm_config)
        if deployment is None:
            raise ValueError(
                f"kv_connector PosencConnector needs additional_config.{KEY}, got none: add that section, which says "
                "how requests are scaled"
            )
        refuse_unsupported(vllm_config)
        refuse_cache_groups(deployment, kv_cache_config)
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        if role == KVConnectorRole.SCHEDULER:
            let_one_answer(PosencConnector)
            block_sizes = [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups]
            self._scheduler = SchedulerHalf(
                deployment,
                block_sizes,
                num_blocks=kv_cache_config.num_blocks,
                images_have_axes=vllm_config.model_config.uses_mrope,
                num_drafted=vllm_config.num_speculative_tokens,
            )
            self._scheduler.scaled_groups = attention_groups(kv_cache_config)  # until the workers say which
            salt_on_arrival()
            parallel = vllm_config.parallel_config
            self._ranks = set(
                itertools.product(range(parallel.pipeline_parallel_size), range(parallel.tensor_parallel_size))
            )
        else:
            for group in kv_cache_config.kv_cache_groups:
                for spec in layer_specs(group).values():
                    if isinstance(spec, AttentionSpec):
                        refuse_head_size(vllm_config, spec.head_size)
            self._worker = WorkerHalf(deployment, vllm_config, kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """False: nothing is handed off at the end, so a preempted request keeps its in-flight tokens."""
        return False

    @property
    def scheduler_half(self) -> SchedulerHalf:
        assert self._scheduler is not None, "workers have no scheduler half"
        return self._scheduler

    @property
    def speed(self) -> Speed | None:
        """How fast this worker turns keys; None where the deployment measures no budget."""
        assert self._worker is not None, "the scheduler turns no keys"
        return self._worker.speed

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        half, pool = self.scheduler_half, kv_cache_manager.block_pool
        half.hash_block_size = pool.hash_block_size
        half.takes_histories = kv_cache_manager.enable_caching and (
            half.deployment.continues or pool.enable_kv_cache_events
        )

    def on_new_request(self, request: Request) -> None:
        assert self._scheduler is not None
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens of a prefix cached at another scale. To vLLM they are tokens that are still to be loaded."""
        assert self._scheduler is not None
        num_tokens = self._scheduler.offered.get(request.request_id, 0)
        return num_tokens, num_tokens > 0

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        assert self._scheduler is not None
        return self._scheduler.build_metadata(scheduler_output)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        return False, self._scheduler.request_finished(request)

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        assert self._worker is not None
        self._worker.register_kv_caches(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata:
        """What a worker tells the scheduler before the first step; vLLM asks when the KV caches are registered."""
        assert self._worker is not None
        return PosencHandshake(self._worker.speed, self._worker.scaled_groups)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Take in what the workers know, by pipeline and tensor rank.

        A group is scaled if any worker says so: a stage of a pipeline knows only its own layers.

        Raises:
            RuntimeError: when a stage did not report its scaled groups, or a worker the speed that it had to measure.
        """
        assert self._scheduler is not None
        told = {rank: each for rank, each in metadata.items() if isinstance(each, PosencHandshake)}
        if missing := sorted({stage for stage, _ in self._ranks} - {stage for stage, _ in told}):
            raise RuntimeError(
                "every stage of the pipeline must say which KV cache groups have keys to scale, but nothing came from "
                f"stage {', '.join(map(str, missing))}: the executor must collect get_kv_connector_handshake_metadata"
            )
        self._scheduler.set_scaled_groups(frozenset().union(*(each.scaled_groups for each in told.values())))
        if not self._scheduler.deployment.measures_budget:
            return
        speeds = {rank: each.speed for rank, each in told.items() if each.speed is not None}
        if missing_ranks := sorted(self._ranks - speeds.keys()):
            raise RuntimeError(
                "every worker must report how fast it re-rotates keys, but the workers of these pipeline and tensor "
                f"ranks did not: {', '.join(map(str, missing_ranks))}. Set scaling.rerotate_budget_tokens to avoid this"
            )
        self._scheduler.set_budget(measured_budget([speed for _, speed in sorted(speeds.items())]))

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert self._worker is not None and isinstance(connector_metadata, PosencMetadata)
        self._worker.apply(connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        half = self._scheduler or self._worker
        assert half is not None
        report = half.take_report()
        return PosencStats(data=report) if report else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        return PosencStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        return PosencPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
