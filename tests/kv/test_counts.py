"""Reports of several steps and workers as one."""

from __future__ import annotations

from posenc_runtime.kv.counts import merged


def test_counts_add_up_and_observations_are_joined() -> None:
    first = {"requests": {"1": 1}, "apply_seconds": [0.1]}
    second = {"requests": {"1": 2, "4": 1}, "apply_seconds": [0.2], "prompt_tokens": {"4": 9}}
    assert merged(first, second) == {
        "requests": {"1": 3, "4": 1},
        "apply_seconds": [0.1, 0.2],
        "prompt_tokens": {"4": 9},
    }
    assert first == {"requests": {"1": 1}, "apply_seconds": [0.1]}


def test_of_a_level_the_later_report_holds() -> None:
    assert merged({"kv_blocks": {"1": 5}}, {"kv_blocks": {"1": 0}}) == {"kv_blocks": {"1": 0}}
