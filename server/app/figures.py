"""What a server counts, read from the samples of its metrics: for our routes, the page and ``posenc top``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from posenc_runtime.vllm_adapter.metrics.names import Metric, StockMetric

_BY_SCALE = {
    "requests": Metric.REQUESTS,
    "prompt_tokens": Metric.PROMPT_TOKENS,
    "generation_tokens": Metric.GENERATION_TOKENS,
    "prefix_hit_tokens": Metric.PREFIX_HIT_TOKENS,
    "kv_blocks": Metric.KV_BLOCKS,
}


class Sample(Protocol):
    """One line of ``/metrics``."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def value(self) -> float: ...


class Counts(BaseModel):
    """Counts of one scale since the server started. ``kv_blocks`` is what running requests hold now."""

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_hit_tokens: int = 0
    kv_blocks: int = 0


class Crossings(BaseModel):
    """How many requests went from one scale to another. Scales are named as in ``/metrics``."""

    model_config = ConfigDict(populate_by_name=True)

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    how: str
    count: int


class Histogram(BaseModel):
    """Times since the server started.

    Attributes:
        bounds: upper ends of the buckets, seconds, ascending. One bucket more, the last, has no upper end.
        counts: how many times fell into each bucket.
    """

    bounds: list[float] = []
    counts: list[int] = []

    def since(self, earlier: Histogram) -> Histogram:
        """What came after an earlier reading; all of it where the server started again in between."""
        if earlier.bounds != self.bounds or any(now < then for now, then in self._beside(earlier)):
            return self
        return Histogram(bounds=self.bounds, counts=[now - then for now, then in self._beside(earlier)])

    def quantile(self, share: float) -> float | None:
        """The time that a share of the times does not exceed, seconds, as Prometheus estimates it; None of no times.

        Args:
            share: from 0 to 1.
        """
        rank, below, start = share * sum(self.counts), 0, 0.0
        if not any(self.counts):
            return None
        for end, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= rank:
                return start + (end - start) * (rank - below) / count
            below, start = below + count, end
        return start

    def _beside(self, earlier: Histogram) -> Iterable[tuple[int, int]]:
        return zip(self.counts, earlier.counts, strict=True)


class PrefillTokens(BaseModel):
    """Prompt tokens by whether the KV cache has them: ``computed``, or still ``waiting``."""

    computed: int = 0
    waiting: int = 0


class Figures(BaseModel):
    """What all engines of a server count together.

    Attributes:
        by_scale: counts by a scale's name in ``/metrics``.
        kv_cache_usage: the share of KV blocks that is in use, from 0 to 1; the mean over engines.
        first_token_seconds: time from a request's arrival to its first token.
        between_tokens_seconds: time from one token of an answer to the next.
        crossing_wait_seconds: time that a request waits because it has to cross.
        prefill_tokens: prompt tokens of requests that have no first token yet.
    """

    by_scale: dict[str, Counts]
    crossings: list[Crossings]
    rerotated_tokens: int
    requests_running: int
    requests_waiting: int
    preemptions: int
    kv_cache_usage: float
    first_token_seconds: Histogram
    between_tokens_seconds: Histogram
    crossing_wait_seconds: Histogram
    prefill_tokens: PrefillTokens


def figures(samples: Iterable[Sample]) -> Figures | None:
    """Read the figures; None where the server counts nothing (``disable_log_stats``), or is not ours."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    by_scale = _by_scale(by_name) or _without_scales(by_name)
    if not by_scale:
        return None
    usages = [sample.value for sample in by_name.get(StockMetric.KV_CACHE_USAGE, ())]
    return Figures(
        by_scale=by_scale,
        crossings=_crossings(by_name.get(Metric.CROSSINGS, ())),
        rerotated_tokens=_total(by_name, Metric.REROTATED_TOKENS),
        requests_running=_total(by_name, StockMetric.RUNNING),
        requests_waiting=_total(by_name, StockMetric.WAITING),
        preemptions=_total(by_name, StockMetric.PREEMPTIONS),
        kv_cache_usage=sum(usages) / len(usages) if usages else 0.0,
        first_token_seconds=_histogram(by_name, StockMetric.FIRST_TOKEN_SECONDS),
        between_tokens_seconds=_histogram(by_name, StockMetric.BETWEEN_TOKENS_SECONDS),
        crossing_wait_seconds=_histogram(by_name, Metric.CROSSING_WAIT_SECONDS),
        prefill_tokens=_prefill_tokens(by_name.get(Metric.PREFILL_TOKENS, ())),
    )


def _by_scale(by_name: Mapping[str, Sequence[Sample]]) -> dict[str, Counts]:
    found: dict[str, dict[str, int]] = {}
    for field, metric in _BY_SCALE.items():
        for sample in by_name.get(metric, ()):
            counts = found.setdefault(sample.labels["scale"], {})
            counts[field] = counts.get(field, 0) + int(sample.value)
    return {scale: Counts(**found[scale]) for scale in sorted(found, key=float)}


def _without_scales(by_name: Mapping[str, Sequence[Sample]]) -> dict[str, Counts]:
    """What vLLM counts, where a deployment of ours has no scales; every request is at the one that keys have."""
    if Metric.STRATEGY_INFO not in by_name or StockMetric.PROMPT_TOKENS not in by_name:
        return {}
    return {
        "1": Counts(
            requests=_total(by_name, StockMetric.SUCCEEDED),
            prompt_tokens=_total(by_name, StockMetric.PROMPT_TOKENS),
            generation_tokens=_total(by_name, StockMetric.GENERATION_TOKENS),
            prefix_hit_tokens=_total(by_name, StockMetric.PREFIX_HIT_TOKENS),
        )
    }


def _crossings(samples: Iterable[Sample]) -> list[Crossings]:
    found: dict[tuple[str, str, str], int] = {}
    for sample in samples:
        key = (sample.labels["from"], sample.labels["to"], sample.labels["how"])
        found[key] = found.get(key, 0) + int(sample.value)
    in_order = sorted(found.items(), key=lambda each: (float(each[0][0]), float(each[0][1]), each[0][2]))
    return [Crossings(source=source, target=target, how=how, count=count) for (source, target, how), count in in_order]


def _prefill_tokens(samples: Iterable[Sample]) -> PrefillTokens:
    found: Counter[str] = Counter()
    for sample in samples:
        found[sample.labels["state"]] += int(sample.value)
    return PrefillTokens(**found)


def _total(by_name: Mapping[str, Sequence[Sample]], metric: str) -> int:
    return int(sum(sample.value for sample in by_name.get(metric, ())))


def _histogram(by_name: Mapping[str, Sequence[Sample]], metric: str) -> Histogram:
    """A histogram over all engines. ``/metrics`` counts a time in each bucket whose upper end it does not exceed."""
    up_to: dict[float, float] = {}
    for sample in by_name.get(f"{metric}_bucket", ()):
        bound = float(sample.labels["le"])
        up_to[bound] = up_to.get(bound, 0.0) + sample.value
    bounds, counts, below = sorted(up_to), [], 0
    for bound in bounds:
        counts.append(int(up_to[bound]) - below)
        below = int(up_to[bound])
    return Histogram(bounds=[bound for bound in bounds if not math.isinf(bound)], counts=counts)
