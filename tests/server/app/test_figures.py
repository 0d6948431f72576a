"""What a server counts, read from its metrics."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.app.figures import Counts, Crossings, Figures, Histogram, figures

# Two engines, as /metrics shows them.
EXPOSED = """
# TYPE posenc_requests counter
posenc_requests_total{engine="0",rope_type="yarn",scale="1"} 3
posenc_requests_total{engine="1",rope_type="yarn",scale="1"} 4
posenc_requests_total{engine="0",rope_type="yarn",scale="16"} 1
posenc_requests_total{engine="0",rope_type="yarn",scale="2.5"} 1
# TYPE posenc_kv_blocks gauge
posenc_kv_blocks{engine="0",scale="16"} 9
# TYPE posenc_prefill_tokens gauge
posenc_prefill_tokens{engine="0",state="computed"} 300
posenc_prefill_tokens{engine="0",state="waiting"} 700
posenc_prefill_tokens{engine="1",state="waiting"} 20
# TYPE posenc_crossings counter
posenc_crossings_total{engine="0",from="2.5",how="rerotate",to="16"} 1
posenc_crossings_total{engine="0",from="1",how="rerotate",to="2.5"} 2
posenc_crossings_total{engine="1",from="1",how="rerotate",to="2.5"} 5
# TYPE posenc_rerotated_tokens counter
posenc_rerotated_tokens_total{engine="0"} 512
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 2
vllm:num_requests_running{engine="1"} 1
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.1
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 10
vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0"} 18
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 19
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1"} 0
vllm:time_to_first_token_seconds_bucket{engine="1",le="1.0"} 1
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf"} 1
"""


def read(exposed: str) -> Figures | None:
    return figures(sample for family in text_string_to_metric_families(exposed) for sample in family.samples)


def test_engines_are_added_and_scales_are_in_order() -> None:
    found = read(EXPOSED)
    assert found is not None
    assert {scale: (counts.requests, counts.kv_blocks) for scale, counts in found.by_scale.items()} == {
        "1": (7, 0), "2.5": (1, 0), "16": (1, 9),
    }  # fmt: skip
    assert list(found.by_scale) == ["1", "2.5", "16"]
    assert found.crossings == [
        Crossings(source="1", target="2.5", how="rerotate", count=7),
        Crossings(source="2.5", target="16", how="rerotate", count=1),
    ]
    assert (found.requests_running, found.requests_waiting, found.rerotated_tokens) == (3, 0, 512)
    assert (found.prefill_tokens.computed, found.prefill_tokens.waiting) == (300, 720)
    assert found.kv_cache_usage == pytest.approx(0.3)


def test_a_deployment_without_scales_has_the_counts_of_vllm() -> None:
    theirs = """
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop"} 3
vllm:request_success_total{engine="0",finished_reason="length"} 4
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0"} 1000
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} 50
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0"} 32
"""
    assert read(theirs) is None
    ours = '# TYPE posenc_strategy_info gauge\nposenc_strategy_info{engine="0",rope_type="rerope"} 1\n'
    found = read(theirs + ours)
    assert found is not None
    assert found.by_scale == {"1": Counts(requests=7, prompt_tokens=1000, generation_tokens=50, prefix_hit_tokens=32)}


def test_buckets_are_no_longer_cumulative() -> None:
    found = read(EXPOSED)
    assert found is not None
    assert found.first_token_seconds == Histogram(bounds=[0.1, 1.0], counts=[10, 9, 1])


def test_crossings_are_written_with_the_names_that_answers_have() -> None:
    found = read(EXPOSED)
    assert found is not None
    assert found.model_dump(by_alias=True)["crossings"][1] == {"from": "2.5", "to": "16", "how": "rerotate", "count": 1}


def test_a_server_that_counts_nothing_by_scale_has_no_figures() -> None:
    assert read("") is None
    assert read('# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 2\n') is None


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.25, 0.05), (0.5, 0.1), (0.75, 0.1 + 0.9 * 5 / 9), (0.95, 1.0), (0.99, 1.0)],
)
def test_quantiles_are_those_of_prometheus(share: float, expected: float) -> None:
    """By hand: of 20 times, 10 are spread evenly up to 0.1 s and 9 from there to 1 s; one is past the last bound."""
    times = Histogram(bounds=[0.1, 1.0], counts=[10, 9, 1])
    assert times.quantile(share) == pytest.approx(expected)


def test_no_times_have_no_quantile() -> None:
    assert Histogram(bounds=[0.1], counts=[0, 0]).quantile(0.5) is None
    assert Histogram().quantile(0.5) is None


def test_times_since_a_reading_are_those_that_came_after_it() -> None:
    earlier, now = Histogram(bounds=[0.1], counts=[10, 2]), Histogram(bounds=[0.1], counts=[13, 2])
    assert now.since(earlier).counts == [3, 0]
    assert earlier.since(now) == earlier, "the server has started again"
    assert now.since(Histogram()) == now
