"""``posenc eval text`` and ``short`` over a server whose log probabilities are known."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest

from server.evaluation.asking import Asker
from server.evaluation.items import Item, Record
from server.evaluation.tasks.text import TextTask
from tests.benchmarks.servers import free_port
from tests.in_a_thread import running
from tests.server.evaluation.fake_server import Fake, by_position

Evaluate = Callable[..., tuple[int, str, str]]


def text(address: str, model: pathlib.Path, book: pathlib.Path, out: pathlib.Path, *more: object) -> list[object]:
    return [
        "text", "--target", f"a={address}/v1", "--text", book, "--tokenizer", model, "--out", out, "--samples", 3,
        "--length", 96, "--bucket", 32, "--decode-from", 48, "--decode", 32, *more,
    ]  # fmt: skip


def results(out: pathlib.Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def test_text_averages_log_probabilities_by_position(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    with running(fake := Fake(logprob=lambda position, _: -position / 10, past_window=-2.0)) as address:
        status, out, _ = evaluate(*text(address, model, book, tmp_path / "out"))
    assert status == 0
    found = results(tmp_path / "out")
    first, second, third = found["one_pass"]["96"]
    # Positions 1 to 31, 32 to 63, 64 to 95: their means are 16, 47.5 and 79.5.
    assert [each["a"]["value"] for each in (first, second, third)] == pytest.approx([-1.6, -4.75, -7.95])
    assert (first["from"], first["to"], third["to"], first["a"]["samples"]) == (1, 31, 95, 3)
    decoded = {row["from"]: row["a"]["value"] for row in found["decoded"]["difference"]}
    assert decoded == pytest.approx({48: 0, 56: 0, 64: -2, 72: -2})
    assert "a: 3 of 3 decoded pieces crossed to another scale, at 64 tokens." in out
    assert (tmp_path / "out" / "one_pass.png").stat().st_size > 5000
    assert (tmp_path / "out" / "report.md").read_text().startswith("# posenc eval text\n")
    assert all(body["temperature"] == 0 for body in fake.requests)


def test_pieces_are_those_of_the_book_and_the_same_for_every_target(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    written = (book / "chapter.txt").read_text()
    alphabet = {
        chr(each): index for index, each in enumerate(sorted([*range(33, 127), *range(161, 173), *range(174, 256)]))
    }
    with running(one := Fake()) as first, running(other := Fake()) as second:
        evaluate(*text(first, model, book, tmp_path / "out", "--target", f"b={second}", "--decode", 0))
    prompts = [sorted(body["prompt"] for body in fake.requests) for fake in (one, other)]
    assert prompts[0] == prompts[1] and len(prompts[0]) == 3
    letters = {index: letter for letter, index in alphabet.items()}
    for prompt in prompts[0]:
        assert "".join(letters.get(each, " ") for each in prompt) in written


def test_a_paired_difference_is_exact_where_targets_differ_by_a_constant(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    worse = Fake(logprob=lambda position, token: by_position(position, token) - 0.25)
    with running(Fake()) as first, running(worse) as second:
        _, out, _ = evaluate(*text(first, model, book, tmp_path / "out", "--target", f"b={second}", "--decode", 0))
    assert "The same, as difference from a" in out
    assert out.count("-0.250 ± 0.000") == 3


def test_a_server_that_cannot_be_told_what_to_say_is_measured_in_one_pass(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    with running(Fake(forces=False)) as address:
        status, out, _ = evaluate(*text(address, model, book, tmp_path / "out"))
    assert status == 0 and "a: decoding was not measured, because this server cannot be told what to say" in out
    assert [row.get("a") for row in results(tmp_path / "out")["decoded"]["decoded"]] == [None] * 4
    assert all(row["a"]["samples"] == 3 for row in results(tmp_path / "out")["decoded"]["one_pass"])


def test_a_run_that_broke_off_goes_on_and_ends_as_an_unbroken_one(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    with running(Fake()) as address:
        evaluate(*text(address, model, book, tmp_path / "whole"))
    with running(broken := Fake(refuses_after=6)) as address:
        status, _, err = evaluate(*text(address, model, book, tmp_path / "out", "--concurrency", 1))
        assert (
            status == 1 and err.splitlines()[-1] == "failed a: /v1/completions answered with status 500: out of order"
        )
        assert len((tmp_path / "out" / "journal.jsonl").read_text().splitlines()) == 2 + 2  # pieces that were complete
        broken.refuses_after, done = None, len(broken.requests)
        status, _, _ = evaluate(*text(address, model, book, tmp_path / "out", "--concurrency", 1))
        assert status == 0
        # What is left: a probe of two requests, one decoded piece with its pass, and three passes.
        assert len(broken.requests) - done == 2 + 2 + 3
    assert results(tmp_path / "out")["decoded"] == results(tmp_path / "whole")["decoded"]
    assert results(tmp_path / "out")["one_pass"] == results(tmp_path / "whole")["one_pass"]


def test_an_interrupt_ends_with_one_line_and_keeps_what_was_measured(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    measured = TextTask.measure

    async def interrupted(self: TextTask, asker: Asker, item: Item) -> Record:
        if item.id == "decoded/48/2":
            raise KeyboardInterrupt
        return await measured(self, asker, item)

    with running(Fake()) as address:
        with monkeypatch.context() as patched:
            patched.setattr(TextTask, "measure", interrupted)
            status, out, err = evaluate(*text(address, model, book, tmp_path / "out", "--concurrency", 1))
        assert (status, out) == (130, "")
        said = f"interrupted: {tmp_path / 'out'} keeps what was measured, and the same command goes on"
        assert err.splitlines()[-1] == said
        assert len((tmp_path / "out" / "journal.jsonl").read_text().splitlines()) == 2 + 2
        assert evaluate(*text(address, model, book, tmp_path / "out"))[0] == 0


def test_a_complete_run_is_reported_again_without_a_request(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    with running(fake := Fake()) as address:
        evaluate(*text(address, model, book, tmp_path / "out"))
        before = len(fake.requests)
        assert evaluate(*text(address, model, book, tmp_path / "out"))[0] == 0
        assert len(fake.requests) == before


def test_short_compares_with_the_first_target(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    def sometimes(prompt: Any) -> str:
        return "an answer" if sum(prompt) % 2 else "another"

    worse = Fake(logprob=lambda position, token: by_position(position, token) - 0.125, says=sometimes)
    with running(Fake()) as first, running(worse) as second:
        status, out, _ = evaluate(
            "short", "--target", f"a={first}", "--target", f"b={second}", "--text", book, "--tokenizer", model,
            "--out", tmp_path / "out", "--samples", 8, "--length", 16,
        )  # fmt: skip
    assert status == 0
    found = results(tmp_path / "out")
    assert found["difference"]["b"]["value"] == pytest.approx(-0.125)
    even = sum(not sum(body["prompt"]) % 2 for body in worse.requests if not body.get("echo"))
    assert found["changed"]["b"]["value"] == even / 8
    assert "+13.3%" in out  # exp(0.125) - 1
    assert {len(body["prompt"]) for body in worse.requests if not body.get("echo")} == {8}


@pytest.mark.parametrize(
    ("fake", "more", "said"),
    [
        (
            {},
            ["--length", 5000],
            r"--target a: serves requests of 4,096 tokens, but this evaluation has .* 5,001: give",
        ),
        ({}, ["--tokenizer", "no/such-model-anywhere"], r"--tokenizer: no tokenizer can be loaded from .no/such-.*"),
        ({}, ["--samples", 5000], r"--text: 5000 pieces of 96 tokens need 480,000 tokens, but the text has 40,000: .*"),
        ({}, ["--text", "no/such/folder"], r"--text: no/such/folder must be a file of text, or a folder of them: .*"),
        ({}, ["--target", "a=demo"], r"--target: names must differ, got 'a' twice: give NAME=TARGET"),
        ({}, ["--set", "b:scaling.scales=[1]"], r"--set b:scaling.*: no deployment that is started here is named 'b'"),
        ({"key": "secret"}, [], r"--target a: \S+ answered with status 401: a key is wanted; give its key in \S+"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_one_line(
    fake: dict[str, Any], more: list[object], said: str, model: pathlib.Path, book: pathlib.Path,
    tmp_path: pathlib.Path, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with running(Fake(**fake)) as address:
        status, out, err = evaluate(*text(address, model, book, tmp_path / "out", *more))
    assert (status, out) == (2, "") and re.fullmatch(f"refused {said}.*\n", err), err


def test_where_no_server_answers_one_line_says_so(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    status, _, err = evaluate(*text(address, model, book, tmp_path / "out"))
    assert (status, err) == (2, f"refused --target a: no server answers at {address}: start it\n")


def test_a_server_that_gives_no_log_probabilities_fails_in_one_line(
    model: pathlib.Path, book: pathlib.Path, tmp_path: pathlib.Path, evaluate: Evaluate
) -> None:
    with running(Fake(echoes=False)) as address:
        status, _, err = evaluate(*text(address, model, book, tmp_path / "out"))
    assert status == 1 and "a gave log probabilities of 0 tokens of a prompt of " in err
