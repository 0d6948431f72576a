"""Our metrics, beside vLLM's in the same registry and with its labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from posenc_runtime.vllm_adapter.active import deployment_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_COUNTERS = {
    "requests": (
        "posenc_requests_total",
        "Requests admitted, by the rotary method and the scale that they were admitted at.",
    ),
    "prompt_tokens": ("posenc_prompt_tokens_total", "Prompt tokens of requests whose prefill began, by scale."),
    "generation_tokens": ("posenc_generation_tokens_total", "Tokens generated, by the scale of their request."),
    "prefix_hit_tokens": (
        "posenc_prefix_hit_tokens_total",
        "Prompt tokens served from the prefix cache, by scale. Keys of another scale are never served.",
    ),
}
_APPLY_BUCKETS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)


class PosencPromMetrics(KVConnectorPromMetrics):
    """Registers every metric at zero for every scale, so that a dashboard shows them before the first request."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        deployment = deployment_of(vllm_config)
        assert deployment is not None, "the connector refuses to start without a deployment"
        _unregister_ours()
        self._rope_type = deployment.rope_type
        scales = [deployment.scale_set.label(index) for index in range(len(deployment.scales))]
        self._counters = {
            name: self._counter_cls(
                name=metric,
                documentation=documentation,
                labelnames=[*labelnames, *(("rope_type", "scale") if name == "requests" else ("scale",))],
            )
            for name, (metric, documentation) in _COUNTERS.items()
        }
        self._kv_blocks = self._gauge_cls(
            name="posenc_kv_blocks",
            documentation="KV-cache blocks that running requests hold, by the scale that their keys are rotated at.",
            labelnames=[*labelnames, "scale"],
        )
        apply_seconds = self._histogram_cls(
            name="posenc_apply_seconds",
            documentation="Seconds a worker spends before a forward on giving blocks their scale.",
            buckets=_APPLY_BUCKETS,
            labelnames=labelnames,
        )
        info = self._gauge_cls(
            name="posenc_strategy_info",
            documentation="The scaling strategy of this deployment; the value is always 1.",
            labelnames=[
                *labelnames,
                *("rope_type", "scales", "original_max_position_embeddings", "on_crossing", "headroom_tokens"),
            ],
        )
        self._apply_seconds = {}
        for engine, values in per_engine_labelvalues.items():
            self._apply_seconds[engine] = apply_seconds.labels(*values)
            info.labels(
                *values,
                deployment.rope_type,
                ",".join(scales),
                deployment.original_max_position_embeddings,
                deployment.on_crossing,
                deployment.headroom_tokens,
            ).set(1)
            for scale in scales:
                self._kv_blocks.labels(*values, scale).set(0)
                for name in self._counters:
                    self._counter(name, engine, scale)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name in self._counters:
            for scale, count in transfer_stats_data.get(name, {}).items():
                self._counter(name, engine_idx, scale).inc(count)
        for scale, level in transfer_stats_data.get("kv_blocks", {}).items():
            self._kv_blocks.labels(*self.per_engine_labelvalues[engine_idx], scale).set(level)
        for seconds in transfer_stats_data.get("apply_seconds", ()):
            self._apply_seconds[engine_idx].observe(seconds)

    def _counter(self, name: str, engine: int, scale: str) -> Any:
        extra = (self._rope_type, scale) if name == "requests" else (scale,)
        return self._counters[name].labels(*self.per_engine_labelvalues[engine], *extra)


def _unregister_ours() -> None:
    """A second engine of a process registers the same names; vLLM does the same for its own."""
    for collector in list(REGISTRY._collector_to_names):
        if isinstance(collector, Counter | Gauge | Histogram) and collector._name.startswith("posenc_"):
            REGISTRY.unregister(collector)
