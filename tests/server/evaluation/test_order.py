"""``posenc eval order`` over servers with a rule for tokens: one can be told what to say, the other cannot."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import statistics
from collections.abc import Callable, Iterator

import pytest
from transformers import AutoTokenizer

from server.evaluation import targets
from tests.in_a_thread import running
from tests.server.evaluation.fake_server import Fake


def by_token(position: int, token: int) -> float:
    return -(token % 7) / 10


def test_order_compares_the_value_that_came_later_with_the_one_before(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Callable[..., tuple[int, str, str]]
) -> None:
    told, read = Fake(logprob=by_token), Fake(logprob=by_token, forces=False)
    with running(told) as first, running(read) as second:
        status, out, error = evaluate(
            "order", "--target", f"told={first}", "--target", f"read={second}", "--text", book, "--tokenizer", model,
            "--out", tmp_path / "out", "--samples", 5, "--length", 400, "--length", 800,
        )  # fmt: skip
    assert status == 0 and "as the latest" in out, error
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    tokens = AutoTokenizer.from_pretrained(model)
    prompts = {tokens.decode(body["prompt"]) for body in told.requests if len(body["prompt"]) > 100}
    expected: dict[int, list[float]] = {400: [], 800: []}
    for prompt in prompts:
        length = 400 if len(prompt) < 500 else 800
        assert length - 6 == len(prompt)  # a space and five digits come after it
        assert prompt.endswith("What is the latest door code?\nAnswer: the door code is")
        updates = list(re.finditer(r"Update: the door code is (\d{5})\.", prompt))
        assert len(updates) == 2 and updates[1].start() < 0.7 * length
        earlier, later = (sum(by_token(0, token) for token in tokens.encode(f" {update[1]}")) for update in updates)
        expected[length].append(later - earlier)
    assert [len(each) for each in expected.values()] == [5, 5]
    for row, (length, each) in zip(found["preference"], expected.items(), strict=True):
        assert row["length"] == length
        assert row["told"]["value"] == row["read"]["value"] == pytest.approx(statistics.fmean(each), abs=1e-5)
    for row, each in zip(found["share"], expected.values(), strict=True):
        assert row["told"]["value"] == sum(round(one, 6) > 0 for one in each) / 5
    assert all(row["read"]["value"] == 0 for row in found["difference"])


def test_order_starts_servers_that_can_be_told_what_to_say_and_asks_what_they_serve(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    started = []
    with running(Fake(max_model_len=1500)) as address:

        @contextlib.contextmanager
        def serve(target: object, console: object, *, forces_tokens: bool) -> Iterator[str]:
            started.append(forces_tokens)
            yield address

        monkeypatch.setattr(targets, "serve_target", serve)
        status, _, error = evaluate(
            "order", "--target", address, "--text", book, "--tokenizer", model, "--out", tmp_path / "out",
            "--samples", 1, "--window", 1024,
        )  # fmt: skip
    assert status == 0, error
    assert started == [True]
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["length"] for row in found["preference"]] == [512, 1024]


def test_order_needs_room_for_both_values_and_the_question(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Callable[..., tuple[int, str, str]]
) -> None:
    with running(Fake()) as address:
        status, _, error = evaluate(
            "order", "--target", address, "--text", book, "--tokenizer", model, "--out", tmp_path / "out",
            "--length", 200,
        )  # fmt: skip
    assert status == 2 and "--length: must be at least" in error
