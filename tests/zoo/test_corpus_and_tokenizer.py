"""The corpus is there and in order; the tokenizer encodes everything and splits numbers into digits."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from posenc_runtime.zoo import corpus, evaluate, tokenizer

TEXTS = ["", "plain text", "naïve café — 東京 🚀\u200d\U0001f468", "\x00\x7f\ttabs\r\n  spaces ", "١٢٣ ½", "a" * 300]


@pytest.fixture(scope="module")
def tok() -> PreTrainedTokenizerFast:
    return tokenizer.load(evaluate.DEMO)


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_comes_back_from_its_tokens(tok: PreTrainedTokenizerFast, text: str) -> None:
    assert tok.decode(tok.encode(text)) == text


def test_every_digit_is_one_token(tok: PreTrainedTokenizerFast) -> None:
    assert [len(tok.encode(digit)) for digit in "0123456789"] == [1] * 10
    assert len(tok.encode("4821300")) == 7


def test_the_end_of_text_token_is_declared(tok: PreTrainedTokenizerFast) -> None:
    assert tok.eos_token == tokenizer.END_OF_TEXT
    assert tok.encode(tokenizer.END_OF_TEXT) == [tok.eos_token_id]


def test_the_chat_template_ends_where_the_answer_begins(tok: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "What is the pass key?"}]
    text = tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "User: What is the pass key?\nAssistant:"


def test_training_a_tokenizer_twice_gives_the_same_one() -> None:
    texts = ["def spam(eggs):\n    return eggs + 1\n", "The quick brown fox."] * 20
    first, second = (tokenizer.train_tokenizer(texts, 400).to_str() for _ in range(2))
    assert first == second


def test_the_corpus_is_never_empty_and_in_the_same_order() -> None:
    first = list(islice(corpus.documents(), 40))
    assert len(first) == 40
    assert all(text.strip() for text in first)
    assert corpus.fingerprint(first) == corpus.fingerprint(islice(corpus.documents(), 40))


def test_tests_and_installed_packages_are_left_out(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "test/c.py", "site-packages/d.py", "__pycache__/e.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('"""Docs."""\n')
    assert [p.name for p in corpus.stdlib_files(tmp_path)] == ["a.py", "b.py"]


def test_a_source_that_does_not_parse_has_no_docstrings() -> None:
    assert corpus.docstrings("def broken(:") == []
    assert corpus.docstrings('"""Top."""\nclass A:\n    """Inner."""') == ["Top.", "Inner."]
