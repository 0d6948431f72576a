"""Counts the requests that our middleware refuses, in the process with the HTTP routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import REGISTRY, Counter

from posenc_runtime.vllm_adapter.metrics.names import Metric


def refusal_counter(model_name: str, reasons: Iterable[str]) -> Callable[[str], None]:
    """Register the counter; what is returned counts a refusal by its reason.

    Args:
        model_name: as in vLLM's own metrics.
        reasons: that are shown at zero before the first refusal.
    """
    name = Metric.REFUSED_REQUESTS.removesuffix("_total")
    if (registered := REGISTRY._names_to_collectors.get(name)) is not None:  # of another server in this process
        REGISTRY.unregister(registered)
    said = "Requests that were refused before vLLM saw them, by the limit that they exceed."
    counter = Counter(name, said, ["model_name", "reason"])
    for reason in reasons:
        counter.labels(model_name, reason)
    return lambda reason: counter.labels(model_name, reason).inc()
