"""The pure parts of the benchmark of crossings: which steps are a crossing's, and how a case is named."""

from __future__ import annotations

from tests.benchmarks import crossings


def test_a_crossings_steps_lie_between_the_token_at_the_trained_length_and_the_next() -> None:
    said = crossings.BEFORE + 1
    steps = [(0.01, count) for count in range(2, said + 1)] + [(0.05, said), (0.03, said + 1), (0.01, said + 2)]
    crossed = crossings.Crossed(crossings.Case(trained=4096, budget=1024, keeps_prefix=True))
    seconds, tokens = zip(*steps, strict=True)
    crossed.add({"step_seconds": seconds, "tokens_after_step": tokens, "first_token_seconds": 0.5, "speeds": []})
    assert crossed.crossing == [[0.05, 0.03]]
    assert crossed.usual == [0.01] * said
    assert crossed.worst_steps == [5.0]
    assert (crossed.percentile(0.5), crossed.percentile(0.99)) == (0.05, 0.05)
    assert crossings.crossings_table([crossed]).rows[0][0] == "4,096 tokens, 1,024 a step, copied"
    assert crossed.num_budget_tokens == 1024


def test_a_case_of_the_default_is_named_after_the_budget_that_its_engine_measured() -> None:
    crossed = crossings.Crossed(crossings.Case(trained=4096, budget=None, keeps_prefix=False))
    speed = {"token_seconds": 1e-5, "weights_seconds": 0.02, "weight_bytes": 10**8, "block_tokens": 32}
    crossed.add({"step_seconds": (), "tokens_after_step": (), "first_token_seconds": 0.5, "speeds": [speed]})
    assert (crossed.name, crossed.num_budget_tokens) == ("4,096 tokens, default: 1,984 a step, in place", 1984)
