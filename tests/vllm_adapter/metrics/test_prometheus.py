"""Our metrics, from the connector's reports."""

from __future__ import annotations

import functools
import pathlib
import types

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, values
from prometheus_client.multiprocess import MultiProcessCollector

from posenc_runtime.kv.counts import merged
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.metrics.layer_groups import LayerGroup
from posenc_runtime.vllm_adapter.metrics.names import Metric
from posenc_runtime.vllm_adapter.metrics.prometheus import PosencPromMetrics, readiness, show_attention
from posenc_runtime.vllm_adapter.metrics.refusals import refusal_counter
from posenc_runtime.vllm_adapter.metrics.stats import PosencStats

YARN = Deployment(rope_type="yarn", scales=(1.0, 4.0), original_max_position_embeddings=256, max_model_len=1024)
LABELS = {"model_name": "tiny", "engine": "0"}


def registered() -> PosencPromMetrics:
    config = types.SimpleNamespace(additional_config={"posenc": YARN.to_mapping()}, kv_transfer_config=None)
    kinds = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    return PosencPromMetrics(config, kinds, list(LABELS), {0: list(LABELS.values())})


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, LABELS | labels)


def test_every_scale_is_there_at_zero_before_the_first_request() -> None:
    registered()
    for scale in ("1", "4"):
        assert value("posenc_requests_total", rope_type="yarn", scale=scale) == 0
        assert value("posenc_kv_blocks", scale=scale) == 0
    assert value("posenc_prefill_tokens", state="waiting") == value("posenc_prefill_tokens", state="computed") == 0
    strategy = {
        "rope_type": "yarn",
        "scales": "1,4",
        "original_max_position_embeddings": "256",
        "on_crossing": "rerotate",
        "prefix_reuse": "exact",
        "headroom_tokens": "256",
    }
    assert value("posenc_strategy_info", **strategy) == 1
    crossing = {"from": "1", "to": "4", "how": "rerotate"}
    assert value("posenc_crossings_total", **crossing) == 0
    assert value("posenc_rerotated_tokens_total") == 0
    assert value("posenc_rerotate_seconds_count") == 0


def test_the_table_of_names_holds_the_metrics_that_are_registered() -> None:
    """And each is registered once, under the whole name that the table has."""
    registered()
    show_attention([LayerGroup(layers="0-3", backend="CPU_ATTN", encoding="rope")], "tiny", [0])
    refusal_counter("tiny", ["max_n"])
    readiness("tiny")
    families = [family for family in REGISTRY.collect() if family.name.startswith("posenc_")]
    shown = [f"{family.name}_total" if family.type == "counter" else family.name for family in families]
    assert sorted(shown) == sorted(Metric)


def test_refusals_are_counted_by_reason_from_zero_on_also_in_a_second_server() -> None:
    for _ in range(2):
        count = refusal_counter("tiny", ["max_n", "json"])
        count("json")
    of = {"model_name": "tiny"}
    assert REGISTRY.get_sample_value("posenc_refused_requests_total", {**of, "reason": "json"}) == 1
    assert REGISTRY.get_sample_value("posenc_refused_requests_total", {**of, "reason": "max_n"}) == 0


def test_the_later_level_replaces_the_earlier_one() -> None:
    metrics = registered()
    metrics.observe(
        merged({"prefill_tokens": {"computed": 9, "waiting": 1}}, {"prefill_tokens": {"computed": 0, "waiting": 5}})
    )
    assert value("posenc_prefill_tokens", state="computed") == 0
    assert value("posenc_prefill_tokens", state="waiting") == 5


def test_crossings_are_counted_by_where_from_where_to_and_how() -> None:
    metrics = registered()
    metrics.observe({"crossings": {"1 4 recompute": 2}, "rerotated_tokens": {"all": 300}, "rerotate_seconds": [0.5]})
    assert value("posenc_crossings_total", **{"from": "1", "to": "4", "how": "recompute"}) == 2
    assert value("posenc_rerotated_tokens_total") == 300
    assert value("posenc_rerotate_seconds_sum") == 0.5


def test_reused_tokens_are_counted_by_where_from_and_where_to() -> None:
    metrics = registered()
    metrics.observe({"prefix_reused_tokens": {"4 1": 192}})
    assert value("posenc_prefix_reused_tokens_total", **{"from": "4", "to": "1"}) == 192


def test_counts_add_up_and_levels_follow() -> None:
    metrics = registered()
    report = PosencStats(data={"requests": {"4": 1}, "kv_blocks": {"1": 0, "4": 7}, "apply_seconds": [0.001]})
    report.aggregate(PosencStats(data={"requests": {"4": 1}, "generation_tokens": {"4": 5}, "apply_seconds": [0.002]}))
    metrics.observe(report.data)
    metrics.observe({"kv_blocks": {"1": 0, "4": 3}})
    metrics.observe(merged({"rerotate_budget_tokens": {"all": 64}}, {"rerotate_budget_tokens": {"all": 96}}))
    assert value("posenc_requests_total", rope_type="yarn", scale="4") == 2
    assert value("posenc_generation_tokens_total", scale="4") == 5
    assert value("posenc_kv_blocks", scale="4") == 3
    assert value("posenc_rerotate_budget_tokens") == 96
    assert value("posenc_apply_seconds_count") == 2
    assert report.reduce() == {"requests": 2, "kv_blocks": 7, "generation_tokens": 5, "apply_seconds": 0.003}
    assert PosencStats(data={"crossing_wait_seconds": [0.5, 1.0]}).reduce() == {"crossing_wait_seconds": 1.5}


def test_a_second_engine_of_a_process_starts_from_zero() -> None:
    registered().observe({"requests": {"4": 1}})
    registered()
    assert value("posenc_requests_total", rope_type="yarn", scale="4") == 0


def test_of_several_api_servers_the_last_one_to_hear_of_a_level_says_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    reports = [
        {"kv_blocks": {"1": 3, "4": 24}, "requests": {"4": 2}},
        {"kv_blocks": {"1": 5, "4": 0}, "requests": {"4": 1}},
    ]
    for process, report in enumerate(reports):
        in_files_of_its_own = values.MultiProcessValue(functools.partial(int, process))  # type: ignore[no-untyped-call]
        monkeypatch.setattr(values, "ValueClass", in_files_of_its_own)
        registered().observe(report)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    found = [sample for family in registry.collect() for sample in family.samples]
    levels = {sample.labels["scale"]: sample.value for sample in found if sample.name == "posenc_kv_blocks"}
    requests = {sample.labels["scale"]: sample.value for sample in found if sample.name == "posenc_requests_total"}
    assert (levels, requests) == ({"1": 5, "4": 0}, {"1": 0, "4": 3})
    series = [(sample.name, *sorted(sample.labels.items())) for sample in found]
    assert len(set(series)) == len(series)
    assert not any("pid" in sample.labels for sample in found)
