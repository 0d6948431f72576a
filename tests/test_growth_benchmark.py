"""The pure parts of the benchmark of requests that grow: its counts and its table."""

from __future__ import annotations

from posenc_runtime.zoo.passkey import PasskeySample
from tests.benchmarks import growth


def test_growth_counts_keys_logprobs_crossings_and_reused_tokens() -> None:
    sample = PasskeySample("...", "12345", " 12345", 0.5, 1, 4, 0)
    cell = growth.Cell(768)
    cell.count(sample, " 12345.", -1.0, {"crossings": [{}], "prefixes_reused": [{"tokens": 448}]})
    cell.count(sample, " 54321.", -2.0, None)
    assert (cell.samples, cell.correct, cell.crossings, cell.reused_tokens) == (2, 1, 1, 448)
    table = growth.results_table("Requests that grow", {"rerotate": [cell]}, 512)
    assert table.headings == ("deployment", "key found, 768 tokens (1.5x)", "mean logprob, 768 tokens (1.5x)")
    assert table.rows == (("rerotate", "0.50 (0.09 to 0.91)", "-1.500 ± 0.980"),)
