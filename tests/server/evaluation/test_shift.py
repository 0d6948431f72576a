"""``posenc eval shift`` over a server that reads by absolute positions, and one that does not."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest

from tests.in_a_thread import running
from tests.server.evaluation.fake_server import Fake


def test_shift_finds_what_an_absolute_encoding_loses_and_a_relative_one_does_not(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Callable[..., tuple[int, str, str]]
) -> None:
    absolute = Fake(logprob=lambda position, token: -position / 50 - token % 5)
    relative = Fake(logprob=lambda position, token: -1.0 - token % 5)
    with running(absolute) as first, running(relative) as second:
        status, out, _ = evaluate(
            "shift", "--target", f"absolute={first}", "--target", f"relative={second}", "--text", book, "--tokenizer",
            model, "--out", tmp_path / "out", "--samples", 4, "--length", 16, "--padding", 10, "--padding", 20,
            "--padding", 60,
        )  # fmt: skip
    assert status == 0 and "Difference after longer padding" in out
    found = json.loads((tmp_path / "out" / "results.json").read_text())["difference"]
    assert [row["padding"] for row in found] == [20, 60]
    assert [row["absolute"]["value"] for row in found] == pytest.approx([-0.2, -1.0], abs=1e-5)
    assert [row["relative"]["value"] for row in found] == pytest.approx([0, 0], abs=1e-5)
    # The piece stands at the end of every prompt, after one token again and again.
    for body in absolute.requests:
        padding = body["prompt"][:-16]
        assert len(padding) in (10, 20, 60) and len(set(padding)) == 1
    ends = {tuple(body["prompt"][-16:]) for body in absolute.requests}
    assert len(ends) == 4 and len(absolute.requests) == 12
