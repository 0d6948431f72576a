"""The ordered scales of a deployment, and the stacked table's layout."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posenc_runtime.kv.scales import ScaleSet, reach

POWERS = ScaleSet(scales=(1, 2, 4, 8), original_max_position_embeddings=512, max_model_len=4096)


@pytest.mark.parametrize(
    ("num_tokens", "scale"),
    [(1, 1), (511, 1), (512, 1), (513, 2), (1024, 2), (1025, 4), (2048, 4), (2049, 8), (4096, 8)],
)
def test_a_request_gets_the_smallest_scale_that_covers_its_length(num_tokens: int, scale: int) -> None:
    assert POWERS.scales[POWERS.for_length(num_tokens)] == scale


def test_a_request_longer_than_the_served_length_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 4096 tokens, got 4097"):
        POWERS.for_length(4097)


def test_each_scale_has_only_the_rows_that_its_requests_can_reach() -> None:
    assert POWERS.lengths == (512, 1024, 2048, 4096)
    assert POWERS.row_offsets == (0, 512, 1536, 3584)
    assert POWERS.num_rows == 7680


def test_the_last_scale_ends_at_the_served_length() -> None:
    scales = ScaleSet(scales=(1, 1.5, 4), original_max_position_embeddings=63, max_model_len=200)
    assert scales.lengths == (63, 94, 200)
    assert [scales.label(index) for index in range(3)] == ["1", "1.5", "4"]


@pytest.mark.parametrize(
    ("scale", "trained", "longest"),
    [(2.3, 100, 230), (1.13, 5000, 5650), (1.5, 63, 94), (1e3, 512, 512_000), (4, 512, 2048)],
)
def test_a_scale_reaches_as_far_as_its_decimals_say(scale: float, trained: int, longest: int) -> None:
    served = {"original_max_position_embeddings": trained, "max_model_len": longest}
    assert reach(scale, trained) == longest
    assert ScaleSet(scales=(1, scale, 10 * scale), **served).lengths == (trained, longest, longest)
    assert ScaleSet(scales=(1, scale), **served).for_length(longest) == 1
    with pytest.raises(ValueError, match=f"reaches only {longest} tokens"):
        ScaleSet(scales=(1, scale), original_max_position_embeddings=trained, max_model_len=longest + 1)


def test_a_served_length_below_the_trained_one_leaves_larger_scales_unused() -> None:
    scales = ScaleSet(scales=(1, 2), original_max_position_embeddings=512, max_model_len=100)
    assert scales.for_length(100) == 0


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"scales": ()}, r"scales must start at 1, got \[\]"),
        ({"scales": (2, 4, 8)}, r"scales must start at 1, got \[2, 4, 8\]"),
        ({"scales": (1, 4, 2, 8)}, r"scales must ascend, got \[1, 4, 2, 8\]"),
        ({"scales": (1, 8, 8)}, r"scales must ascend, got \[1, 8, 8\]"),
        ({"scales": (1, float("nan"))}, r"scales must be finite, got \[1, nan\]"),
        ({"scales": (1, 2)}, "scales must cover max_model_len 4096, but the largest, 2, reaches only 1024 tokens"),
        ({"max_model_len": 0}, "max_model_len must be at least 1, got 0"),
        (
            {"scales": (1, 2**22)},
            r"scales must reach at most 2147483647 tokens, got 4\.1943e\+06 times the trained 512",
        ),
    ],
)
def test_contradictory_scales_are_refused_with_the_rule(changed: dict[str, Any], rule: str) -> None:
    values = {"scales": (1, 2, 4, 8), "original_max_position_embeddings": 512, "max_model_len": 4096}
    with pytest.raises(ValueError, match=rule):
        ScaleSet(**values | changed)


def test_positions_reach_as_far_as_32_bits() -> None:
    furthest = ScaleSet(scales=(1, 2**22 - 1), original_max_position_embeddings=512, max_model_len=2**31 - 512)
    assert furthest.for_length(2**31 - 512) == 1


@given(
    steps=st.lists(st.integers(min_value=1, max_value=40), max_size=5),
    trained=st.integers(min_value=1, max_value=3000),
    served=st.floats(min_value=0, max_value=1, exclude_min=True),
)
def test_no_row_index_can_leave_the_stacked_table(steps: list[int], trained: int, served: float) -> None:
    scales = [1.0]
    for step in steps:
        scales.append(scales[-1] + step / 4)
    longest = max(1, int(served * scales[-1] * trained))
    scale_set = ScaleSet(scales=tuple(scales), original_max_position_embeddings=trained, max_model_len=longest)
    # A stale token may sit in a block of any scale, at any position that is served.
    for offset in scale_set.row_offsets:
        assert offset + longest - 1 < scale_set.num_rows
    for num_tokens in {1, longest, min(trained, longest), min(trained + 1, longest)}:
        index = scale_set.for_length(num_tokens)
        assert scale_set.lengths[index] >= num_tokens
        assert index == 0 or scale_set.lengths[index - 1] < num_tokens
