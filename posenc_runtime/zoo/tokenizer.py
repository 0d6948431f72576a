"""The tokenizer: a small byte-level BPE in which every digit is a token of its own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from posenc_runtime.zoo import corpus, filler, passkey

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 1024
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}Assistant: {{ message['content'] }}{{ eos_token }}"
    "{% else %}User: {{ message['content'] }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def synthetic_texts(count: int = 3000) -> list[str]:
    """Haystack sentences and pass key phrases. Training on them makes their words whole tokens."""
    rng = random.Random(0)
    frame = f"{passkey.NEEDLE.format(key='')}{passkey.QUESTION}\nUser: Assistant: The code is"
    return [f"{filler.paragraph(rng, 12)} {frame}" for _ in range(count)]


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learn the merges. The vocabulary has all 256 bytes from the start, so that every text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(chain(texts, synthetic_texts()), trainer)
    return tokenizer


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The same tokenizer as transformers and vLLM load it, with its end-of-text token and its chat template."""
    kind: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = kind(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    return wrapped


def load(folder: Path) -> PreTrainedTokenizerFast:
    loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return loaded


def end_of_text_id(tok: PreTrainedTokenizerFast) -> int:
    vocabulary: dict[str, int] = tok.get_vocab()
    return vocabulary[END_OF_TEXT]


def save(tok: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, with a class name that older versions of transformers know."""
    tok.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    for key in ("backend", "is_local", "local_files_only"):
        settings.pop(key, None)
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def build(folder: Path, vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Train on the standard library's text and save into the folder."""
    wrapped = wrap(train_tokenizer(corpus.documents(), vocab_size))
    save(wrapped, folder)
    return wrapped
