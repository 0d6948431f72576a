"""What a running server says at ``/metrics``."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


def metrics(address: str) -> dict[tuple[str, Labels], float]:
    """Every sample, by its name and by its labels but those that all of them carry."""
    text = httpx.get(f"{address}/metrics", timeout=60).text
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ("engine", "model_name")))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(address: str, name: str) -> float:
    """A sample summed over its labels."""
    return sum(value for (metric, _), value in metrics(address).items() if metric == name)
