"""Our metrics, beside vLLM's in the same registry and with its labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from posenc_runtime.kv.counts import TOTAL
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.prefills import COMPUTED, WAITING
from posenc_runtime.vllm_adapter.contract.active import deployment_of
from posenc_runtime.vllm_adapter.metrics.layer_groups import LayerGroup
from posenc_runtime.vllm_adapter.metrics.names import PREFIX, Metric

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# By a count's name in the report: metric, labels, help. The keys of a count are label values, separated by spaces.
_COUNTERS: dict[str, tuple[Metric, tuple[str, ...], str]] = {
    "requests": (
        Metric.REQUESTS,
        ("rope_type", "scale"),
        "Requests admitted, by the rotary method and the scale that they were admitted at.",
    ),
    "prompt_tokens": (
        Metric.PROMPT_TOKENS,
        ("scale",),
        "Prompt tokens of requests whose prefill began, by scale.",
    ),
    "generation_tokens": (
        Metric.GENERATION_TOKENS,
        ("scale",),
        "Generated tokens, by the scale at which the engine computed each; updated when a request fills a KV block, "
        "crosses or ends.",
    ),
    "prefix_hit_tokens": (
        Metric.PREFIX_HIT_TOKENS,
        ("scale",),
        "Prompt tokens served from the prefix cache, by scale. Keys of another scale are never served.",
    ),
    "crossings": (
        Metric.CROSSINGS,
        ("from", "to", "how"),
        "Requests that outgrew their scale and went on at another. A crossing that is replayed after a preemption is "
        "counted once.",
    ),
    "rerotated_tokens": (
        Metric.REROTATED_TOKENS,
        (),
        "Cached tokens whose keys were re-rotated, including replays after a preemption.",
    ),
    "copied_blocks": (
        Metric.COPIED_BLOCKS,
        (),
        "KV-cache blocks copied because another request reads them, or a later one may reuse them at their old scale.",
    ),
    "window_kv_blocks_read": (
        Metric.WINDOW_KV_BLOCKS_READ,
        (),
        "KV-cache blocks that attention with a distance bias read, counted for each layer, KV head and tile of queries."
        " With several workers, only one reports.",
    ),
    "window_kv_blocks_skipped": (
        Metric.WINDOW_KV_BLOCKS_SKIPPED,
        (),
        "KV-cache blocks that such attention did not read, because the bias makes their weights too small to matter. "
        "Counted like the blocks read.",
    ),
    "prefix_reused_tokens": (
        Metric.PREFIX_REUSED_TOKENS,
        ("from", "to"),
        "Prompt tokens taken from the prefix cache at another scale and re-rotated instead of computed.",
    ),
}
_HISTOGRAMS: dict[str, tuple[Metric, tuple[float, ...], str]] = {
    "apply_seconds": (
        Metric.APPLY_SECONDS,
        (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0),
        "Seconds that a worker spent giving blocks their scale before a forward pass; on CUDA, only the time of the "
        "launches. With several workers, only one reports.",
    ),
    "rerotate_seconds": (
        Metric.REROTATE_SECONDS,
        (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0),
        "Seconds that a worker spent re-rotating cached keys before a forward pass; on CUDA, only the time of the "
        "launches. With several workers, only one reports.",
    ),
    "crossing_wait_seconds": (
        Metric.CROSSING_WAIT_SECONDS,
        (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0),
        "Seconds from the moment that a request has to cross until it runs again.",
    ),
}

_OF_STRATEGY = "The scaling strategy of this deployment; the value is always 1."
_STRATEGY = (
    *("rope_type", "scales", "original_max_position_embeddings"),
    *("on_crossing", "prefix_reuse", "headroom_tokens"),
)

# vllm serve may have several API servers, and a step's report reaches only one: the latest value set is the true one.
_ACROSS_SERVERS: Literal["mostrecent"] = "mostrecent"


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
            name: self._counter_cls(name=metric, documentation=documentation, labelnames=[*labelnames, *labels])
            for name, (metric, labels, documentation) in _COUNTERS.items()
        }
        self._histograms = {
            name: self._histogram_cls(name=metric, documentation=documentation, buckets=buckets, labelnames=labelnames)
            for name, (metric, buckets, documentation) in _HISTOGRAMS.items()
        }
        self._kv_blocks = self._gauge_cls(
            name=Metric.KV_BLOCKS,
            documentation="KV-cache blocks that running requests hold, by the scale that their keys are rotated at.",
            labelnames=[*labelnames, "scale"],
            multiprocess_mode=_ACROSS_SERVERS,
        )
        self._prefill_tokens = self._gauge_cls(
            name=Metric.PREFILL_TOKENS,
            documentation="Prompt tokens of requests that have no first token yet, by whether the KV cache has them "
            "(computed) or not (waiting).",
            labelnames=[*labelnames, "state"],
            multiprocess_mode=_ACROSS_SERVERS,
        )
        self._budget = self._gauge_cls(
            name=Metric.REROTATE_BUDGET_TOKENS,
            documentation="Most cached tokens that are re-rotated before one step; 0 until the first step.",
            labelnames=labelnames,
            multiprocess_mode=_ACROSS_SERVERS,
        )
        self._saturation = self._gauge_cls(
            name=Metric.COPE_SATURATION_RATIO,
            documentation="Share of the keys read since the last report that are past CoPE's last position; CoPE does "
            "not tell these keys apart. With several workers, only one reports.",
            labelnames=labelnames,
            multiprocess_mode=_ACROSS_SERVERS,
        )
        info = self._gauge_cls(
            name=Metric.STRATEGY_INFO,
            documentation=_OF_STRATEGY,
            labelnames=[*labelnames, *_STRATEGY],
            multiprocess_mode=_ACROSS_SERVERS,
        )
        for engine, values in per_engine_labelvalues.items():
            info.labels(*values, *_strategy(deployment)).set(1)
            for histogram in self._histograms.values():
                histogram.labels(*values)
            self._budget.labels(*values).set(0)
            for state in (COMPUTED, WAITING):
                self._prefill_tokens.labels(*values, state).set(0)
            for scale in scales:
                self._kv_blocks.labels(*values, scale).set(0)
            for name in _COUNTERS:
                for key in _expected(name, deployment, scales):
                    self._counter(name, engine, key)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name in self._counters:
            for key, count in transfer_stats_data.get(name, {}).items():
                self._counter(name, engine_idx, key).inc(count)
        values = self.per_engine_labelvalues[engine_idx]
        for scale, level in transfer_stats_data.get("kv_blocks", {}).items():
            self._kv_blocks.labels(*values, scale).set(level)
        for state, tokens in transfer_stats_data.get("prefill_tokens", {}).items():
            self._prefill_tokens.labels(*values, state).set(tokens)
        for tokens in transfer_stats_data.get("rerotate_budget_tokens", {}).values():
            self._budget.labels(*values).set(tokens)
        if walked := transfer_stats_data.get("cope_walked"):
            self._saturation.labels(*values).set(walked.get("saturated", 0) / sum(walked.values()))
        for name, histogram in self._histograms.items():
            for seconds in transfer_stats_data.get(name, ()):
                histogram.labels(*values).observe(seconds)

    def _counter(self, name: str, engine: int, key: str) -> Any:
        extra = [] if key == TOTAL else key.split()
        if name == "requests":
            extra = [self._rope_type, *extra]
        counter = self._counters[name]
        values = [*self.per_engine_labelvalues[engine], *extra]
        return counter.labels(*values)


def _strategy(deployment: Deployment) -> tuple[object, ...]:
    """The values of the labels ``_STRATEGY``."""
    return (
        deployment.rope_type,
        ",".join(deployment.scale_set.label(index) for index in range(len(deployment.scales))),
        deployment.original_max_position_embeddings,
        deployment.on_crossing,
        deployment.prefix_reuse,
        deployment.headroom_tokens,
    )


def show_strategy(deployment: Deployment, model_name: str, engines: Iterable[int]) -> None:
    """Show the strategy of a deployment that has no connector, which would show it.

    Args:
        engines: numbers of the engines, as in vLLM's own metrics.
    """
    gauge = Gauge(
        Metric.STRATEGY_INFO,
        _OF_STRATEGY,
        ("model_name", "engine", *_STRATEGY),
        multiprocess_mode=_ACROSS_SERVERS,
    )
    for engine in engines:
        gauge.labels(model_name, str(engine), *_strategy(deployment)).set(1)


def show_attention(groups: list[LayerGroup], model_name: str, engines: Iterable[int]) -> None:
    """Show in a metric which backend attends in which layers; all engines of a server have the same ones.

    Args:
        engines: numbers of the engines, as in vLLM's own metrics.
    """
    labels = ("model_name", "engine", "layer_group", "backend", "encoding")
    gauge = Gauge(
        Metric.ATTENTION_BACKEND_INFO,
        "Which backend computes attention in which layers, and their position encoding; the value is always 1.",
        labels,
        multiprocess_mode=_ACROSS_SERVERS,
    )
    for engine in engines:
        for group in groups:
            gauge.labels(model_name, str(engine), group.layers, group.backend, group.encoding).set(1)


def readiness(model_name: str) -> Callable[[bool], None]:
    """A gauge that shows whether this server takes requests; with several API servers, whether all of them do."""
    gauge = Gauge(
        Metric.READY,
        "1 if the server takes requests, as /health/ready says; 0 while it drains or its engine does not answer.",
        ("model_name",),
        multiprocess_mode="livemin",
    )
    child = gauge.labels(model_name)
    return lambda is_ready: child.set(is_ready)


def _expected(name: str, deployment: Deployment, scales: list[str]) -> list[str]:
    """The keys of a count, for which its counter is shown at zero before the first request."""
    match _COUNTERS[name][1]:
        case ():
            return [TOTAL]
        case ("from", "to", "how"):
            steps = itertools.pairwise(scales) if deployment.crosses else ()
            return [f"{low} {high} {deployment.on_crossing}" for low, high in steps]
        case ("from", "to"):
            changes = itertools.permutations(scales, 2) if deployment.reuses_prefixes else ()
            return [f"{source} {target}" for source, target in changes]
        case _:
            return scales


def _unregister_ours() -> None:
    """Let a second engine of a process register the same names. vLLM unregisters its own metrics likewise."""
    for collector in list(REGISTRY._collector_to_names):
        if isinstance(collector, Counter | Gauge | Histogram) and collector._name.startswith(PREFIX):
            REGISTRY.unregister(collector)
