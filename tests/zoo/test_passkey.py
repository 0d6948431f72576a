"""Pass key prompts: exact lengths, keys where they belong, determinism and scoring."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from posenc_runtime.zoo import evaluate, passkey, tokenizer


@pytest.fixture(scope="module")
def tok() -> PreTrainedTokenizerFast:
    return tokenizer.load(evaluate.DEMO)


@pytest.mark.parametrize("length", [64, 256, 511, 512, 1024, 2048])
def test_a_prompt_has_exactly_the_requested_length(tok: PreTrainedTokenizerFast, length: int) -> None:
    for seed in range(5):
        sample = passkey.make_sample(tok, length, seed)
        assert len(tok.encode(sample.prompt + sample.answer)) == length
        assert len(tok.encode(sample.prompt)) == sample.prompt_tokens


def test_the_key_stands_exactly_where_the_needle_puts_it(tok: PreTrainedTokenizerFast) -> None:
    for seed in range(20):
        sample = passkey.make_sample(tok, 300, seed)
        assert sample.prompt.count(sample.key) == 2
        assert passkey.NEEDLE.format(key=sample.key).strip() in sample.prompt
        assert sample.prompt.endswith(passkey.QUESTION)
        assert sample.answer == f" {sample.key}"


def test_the_prompt_and_the_answer_are_tokenized_apart(tok: PreTrainedTokenizerFast) -> None:
    sample = passkey.make_sample(tok, 200, 1)
    assert tok.encode(sample.prompt) + tok.encode(sample.answer) == tok.encode(sample.prompt + sample.answer)


def test_the_same_seed_gives_the_same_sample_and_another_seed_another(tok: PreTrainedTokenizerFast) -> None:
    assert passkey.make_sample(tok, 256, 7) == passkey.make_sample(tok, 256, 7)
    assert passkey.make_sample(tok, 256, 7).key != passkey.make_sample(tok, 256, 8).key


def test_a_given_depth_places_the_needle(tok: PreTrainedTokenizerFast) -> None:
    first = passkey.make_sample(tok, 400, 3, depth=0.0)
    last = passkey.make_sample(tok, 400, 3, depth=1.0)
    assert first.prompt.startswith("The pass key is")
    assert last.prompt.index(last.key) > len(last.prompt) // 2


def test_depths_cover_the_whole_prompt(tok: PreTrainedTokenizerFast) -> None:
    depths = [passkey.make_sample(tok, 128, seed).depth for seed in range(50)]
    assert min(depths) < 0.1
    assert max(depths) > 0.9


def test_decoys_are_other_codes_and_keep_the_length(tok: PreTrainedTokenizerFast) -> None:
    sample = passkey.make_sample(tok, 400, 6, decoys=4)
    assert sample.prompt.count(" code is ") == 4
    assert sample.prompt.count(sample.key) == 2
    assert len(tok.encode(sample.prompt + sample.answer)) == 400


def test_a_length_that_cannot_hold_the_needle_is_refused(tok: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        passkey.make_sample(tok, 20, 0)


class WordTokenizer:
    """A tokenizer of another kind: one token a word, and one before every text."""

    def encode(self, text: str) -> list[int]:
        return [0, *map(len, text.split())]


def test_another_tokenizer_gets_exact_lengths_too() -> None:
    tok = WordTokenizer()
    for length in (60, 61, 400):
        sample = passkey.make_sample(tok, length, 5)
        assert len(tok.encode(sample.prompt + sample.answer)) == length


@pytest.mark.parametrize(
    ("completion", "expected"),
    [(" {key}.", True), ("{key}", True), (" {key}7", False), (" not {key}", False), ("", False)],
)
def test_only_the_key_itself_at_the_start_counts(tok: PreTrainedTokenizerFast, completion: str, expected: bool) -> None:
    sample = passkey.make_sample(tok, 128, 2)
    assert passkey.is_correct(sample, completion.format(key=sample.key)) is expected


def test_the_wilson_interval_holds_the_rate_and_stays_within_zero_and_one() -> None:
    low, high = passkey.wilson_interval(190, 200)
    assert low < 0.95 < high
    assert low == pytest.approx(0.910, abs=0.002)
    assert passkey.wilson_interval(200, 200)[1] == 1.0
    assert passkey.wilson_interval(0, 200)[0] == 0.0
    assert passkey.wilson_interval(0, 0) == (0.0, 1.0)
