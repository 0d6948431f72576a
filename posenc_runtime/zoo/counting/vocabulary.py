"""The words of the counting task, and their tokenizer: words are divided by white space, and each is one token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from posenc_runtime.zoo.counting.task import LARGEST, NAMES, Program
from posenc_runtime.zoo.tokenizer import END_OF_TEXT

UNKNOWN = "<|unknown|>"
# END_OF_TEXT ends an answer and starts a program.
WORDS = (END_OF_TEXT, UNKNOWN, *NAMES, *(str(n) for n in range(LARGEST + 1)), "=", ";", "++;", "pass;", "print")
IDS = {word: place for place, word in enumerate(WORDS)}
END = IDS[END_OF_TEXT]


def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer(IDS)


def word_tokenizer(ids: Mapping[str, int]) -> PreTrainedTokenizerFast:
    """A tokenizer of words, as transformers and vLLM load it. It puts the start token before every text.

    Args:
        ids: the words with their tokens, ``END_OF_TEXT`` and ``UNKNOWN`` among them.
    """
    words = Tokenizer(models.WordLevel(dict(ids), unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, ids[END_OF_TEXT])]
    )
    kind: Any = PreTrainedTokenizerFast
    made: PreTrainedTokenizerFast = kind(
        tokenizer_object=words,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
    return made


def ids_of(program: Program) -> list[int]:
    """The tokens of a program's prompt, with the start token: equal to what the tokenizer makes of the text."""
    return [END, *(IDS[word] for word in program.words)]
