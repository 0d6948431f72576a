"""A step launches kernels and does no more: it neither waits for the device nor asks it, so a graph can hold it."""

from __future__ import annotations

import json

import pytest

from tests.kernels.processes import output_of

pytestmark = pytest.mark.slow

Steps = dict[str, list[tuple[str, int]]]
AGAIN = ["cope-scores", "cope-values", "cope-values", "merge"]  # for more requests than there is room for scores


@pytest.fixture(scope="module")
def steps() -> Steps:
    """Of each what it launches, in order, and of how many programs."""
    found: Steps = json.loads(output_of("launched.py"))
    return found


def test_steps_launch_what_they_need_without_asking_the_device(steps: Steps) -> None:
    assert {name: [kernel for kernel, _ in launched] for name, launched in steps.items()} == {
        "rows of the table": ["rope-rows"],
        "rotation into the cache": ["rotary-store"],
        "key norms": ["norms", "maxima"],
        "bias, lone queries": ["decode", "merge"],
        "bias, lone queries, windowed": ["plan", "decode", "merge"],
        "bias, prompts, windowed": ["plan", "prefill", "decode", "merge"],
        "bias, a graph of many lone queries": ["decode", "merge"],
        "bias, a graph of many lone queries, windowed": ["plan", "decode", "merge"],
        "contextual positions, lone queries": ["cope-scores", "cope-values", "merge"],
        "contextual positions, lone queries of very many keys": AGAIN,
        "contextual positions, a graph of many lone queries": AGAIN,
        "contextual positions, prompts": ["cope-prefill", "cope-scores", "cope-values", "merge"],
        "contextual positions, a prompt": ["cope-prefill"],
    }


def test_programs_of_a_graph_are_as_many_as_have_room_whatever_length_it_is_made_for(steps: Steps) -> None:
    graphs = [launched for name, launched in steps.items() if "a graph" in name]
    of_keys = [each for launched in graphs for each in launched if each[0] in ("decode", "cope-scores", "cope-values")]
    assert len(of_keys) == 5  # what else is launched is of requests and heads
    assert max(programs for _, programs in of_keys) <= 6 * 132  # six for each multiprocessor of an H100
