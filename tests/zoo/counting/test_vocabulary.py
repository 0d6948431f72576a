"""The tokenizer: a token a word, a start before every text, and the same ids as those that were trained on."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from posenc_runtime.zoo import tokenizer
from posenc_runtime.zoo.counting import vocabulary
from posenc_runtime.zoo.counting.task import make_program


def test_a_saved_tokenizer_reads_prompts_as_training_does(tmp_path: Path) -> None:
    tokenizer.save(vocabulary.tokenizer(), tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for seed in range(20):
        program = make_program(5, seed)
        assert loaded(program.text)["input_ids"] == vocabulary.ids_of(program)


def test_every_word_is_one_token_and_comes_back() -> None:
    made = vocabulary.tokenizer()
    assert len(made) == len(vocabulary.WORDS) == len(vocabulary.IDS)
    text = make_program(5, 3).text + " 10"
    assert made.decode(made.encode(text), skip_special_tokens=True) == text


def test_a_word_of_no_program_is_unknown() -> None:
    assert vocabulary.tokenizer().encode("a -- ;")[2] == vocabulary.IDS[vocabulary.UNKNOWN]
