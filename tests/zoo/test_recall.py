"""Training sequences: full length, the same for the same seed and step, and masks over what can be recalled."""

from __future__ import annotations

import random

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from posenc_runtime.zoo import evaluate, passkey, tokenizer
from posenc_runtime.zoo.recall import Mix, SequenceMaker


@pytest.fixture(scope="module")
def tok() -> PreTrainedTokenizerFast:
    return tokenizer.load(evaluate.DEMO)


@pytest.fixture(scope="module")
def maker(tok: PreTrainedTokenizerFast) -> SequenceMaker:
    corpus_ids = np.asarray(tok.encode("def spam(eggs):\n    return eggs\n" * 400), dtype=np.int64)
    return SequenceMaker(tok, corpus_ids, seed=3)


def decoded(tok: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return "".join(tok.batch_decode([[i] for i in ids]))


@pytest.mark.parametrize("length", [64, 128, 512])
def test_every_sequence_fills_the_batch(maker: SequenceMaker, length: int) -> None:
    ids, recalled = maker.batch(0, length, 64, Mix())
    assert ids.shape == recalled.shape == (64, length)
    assert set(np.unique(recalled)) == {0.0, 1.0}


def test_a_batch_depends_on_seed_and_step_alone(maker: SequenceMaker) -> None:
    first, again, other = (maker.batch(step, 64, 8, Mix())[0] for step in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_copy_repeats_what_stood_before(maker: SequenceMaker) -> None:
    draft = maker.copy(random.Random(1), 128, Mix())
    recalled = [i for i, flag in zip(draft.ids, draft.recalled, strict=True) if flag]
    first = draft.recalled.index(1)
    earlier = draft.ids[:first]
    assert any(earlier[i : i + len(recalled)] == recalled for i in range(first))


def test_every_answer_to_a_needle_is_stated_before(maker: SequenceMaker, tok: PreTrainedTokenizerFast) -> None:
    for seed in range(30):
        draft = maker.needles(random.Random(seed), 256, Mix())
        first = draft.recalled.index(1)
        told = decoded(tok, draft.ids[:first])
        runs = "".join(decoded(tok, [i]) if f else "|" for i, f in zip(draft.ids, draft.recalled, strict=True))
        assert all(value in told for value in runs.split("|") if value)


def test_a_training_prompt_is_tokenized_like_its_text(tok: PreTrainedTokenizerFast) -> None:
    needle = passkey.NEEDLE.format(key="48213")
    told, between, after = (tok.encode(part) for part in passkey.NEEDLE.split("{key}"))
    digits = tok.encode("48213")
    assert tok.encode(needle) == told + digits + between + digits + after


def test_the_pass_key_sequence_ends_with_the_key_and_the_end_of_text(
    maker: SequenceMaker, tok: PreTrainedTokenizerFast
) -> None:
    draft = maker.passkey(random.Random(4), 128, Mix())
    answer = decoded(tok, [i for i, flag in zip(draft.ids, draft.recalled, strict=True) if flag])
    assert answer.endswith(f".{tokenizer.END_OF_TEXT}")
    assert decoded(tok, draft.ids).count(answer.strip()[:5]) >= 2
