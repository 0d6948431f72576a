"""A step launches kernels and does no more: it neither waits for the device nor asks it, so a graph can hold it."""

from __future__ import annotations

import json

from tests.kernels.processes import output_of


def test_steps_launch_what_they_need_without_asking_the_device() -> None:
    assert json.loads(output_of("launched.py")) == {
        "rows of the table": ["rope-rows"],
        "rotation into the cache": ["rotary-store"],
        "key norms": ["norms", "maxima"],
        "bias, lone queries": ["decode", "merge"],
        "bias, lone queries, windowed": ["plan", "decode", "merge"],
        "bias, prompts, windowed": ["plan", "prefill", "decode", "merge"],
        "contextual positions, lone queries": ["cope-scores", "cope-values", "merge"],
        # the scores of two requests fill the room for them
        "contextual positions, lone queries of very many keys": ["cope-scores", "cope-values"] * 2 + ["merge"],
        "contextual positions, prompts": ["cope-prefill", "cope-scores", "cope-values", "merge"],
        "contextual positions, a prompt": ["cope-prefill"],
    }
