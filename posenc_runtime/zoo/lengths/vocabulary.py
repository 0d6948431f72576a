"""The tokenizers: text has the demo model's, and the tasks have one in which every word is a token."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from posenc_runtime.zoo import tokenizer
from posenc_runtime.zoo.counting.vocabulary import UNKNOWN, word_tokenizer
from posenc_runtime.zoo.evaluate import DEMO
from posenc_runtime.zoo.lengths.problems import BITS, EQUALS, LETTERS, PLUS
from posenc_runtime.zoo.tokenizer import END_OF_TEXT

WORDS = (END_OF_TEXT, UNKNOWN, *BITS, *LETTERS, EQUALS, PLUS)
IDS = {word: place for place, word in enumerate(WORDS)}
END = IDS[END_OF_TEXT]


def of_text() -> PreTrainedTokenizerFast:
    return tokenizer.load(DEMO)


def of_tasks() -> PreTrainedTokenizerFast:
    return word_tokenizer(IDS)


def ids_of(words: Sequence[str]) -> list[int]:
    """The tokens of a problem, with the start token: equal to what the tokenizer makes of the text."""
    return [END, *(IDS[word] for word in words)]
