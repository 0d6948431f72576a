"""Pass key retrieval: prompts of an exact length in tokens, and the scoring of what a model answers."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from posenc_runtime.zoo import filler

NEEDLE = " The pass key is {key}. Remember it. {key} is the pass key."
DECOY = " The {name} code is {number}."
DECOY_NAMES = ("harbor", "garden", "market", "bridge", "winter", "window", "kitchen", "station", "office", "forest")
QUESTION = " What is the pass key? The pass key is"
PAD_WORDS = (" and", " the", " of", " so", " a", " is", " it", ".", " x", "!")


class TextTokenizer(Protocol):
    """What this module needs of a tokenizer. Every tokenizer of transformers has it."""

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True)
class PasskeySample:
    """A prompt, and `answer`, its correct continuation. Prompt and answer together are `total_tokens` long."""

    prompt: str
    key: str
    answer: str
    depth: float
    prompt_tokens: int
    total_tokens: int
    seed: int


def count(tokenizer: TextTokenizer, text: str) -> int:
    return len(tokenizer.encode(text))


def random_key(rng: random.Random, digits: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(digits))


def haystack(tokenizer: TextTokenizer, rng: random.Random, budget: int) -> list[str]:
    """Sentences, each after a space, that together have at most `budget` tokens."""
    overhead = count(tokenizer, "")
    sentences: list[str] = []
    while budget > 0:
        text = " " + filler.sentence(rng)
        budget -= count(tokenizer, text) - overhead
        if budget >= 0:
            sentences.append(text)
    return sentences


def assemble(sentences: list[str], needle: str, depth: float, padding: str) -> str:
    cut = round(depth * len(sentences))
    return ("".join(sentences[:cut]) + needle + "".join(sentences[cut:]) + padding + QUESTION).lstrip(" ")


def decoy_sentences(rng: random.Random, key: str, number: int) -> list[str]:
    """Sentences with other codes, which never have the name or the value of the pass key."""
    sentences: list[str] = []
    while len(sentences) < number:
        value = random_key(rng, len(key))
        if value != key:
            sentences.append(DECOY.format(name=rng.choice(DECOY_NAMES), number=value))
    return sentences


def make_sample(
    tokenizer: TextTokenizer,
    total_tokens: int,
    seed: int,
    depth: float | None = None,
    digits: int = 5,
    decoys: int = 0,
) -> PasskeySample:
    """A sample of exactly `total_tokens`, answer included. The needle's depth is uniform unless it is given.

    The same arguments always give the same sample. Decoys are other codes in the haystack, which make the task harder.
    """
    rng = random.Random(f"passkey:{seed}:{total_tokens}:{digits}")
    key = random_key(rng, digits)
    answer, needle = f" {key}", NEEDLE.format(key=key)
    uniform = rng.random()
    depth = uniform if depth is None else depth
    others = decoy_sentences(rng, key, decoys)
    fixed = count(tokenizer, assemble(others, needle, depth, "") + answer)
    if fixed > total_tokens:
        raise ValueError(f"{total_tokens} tokens cannot hold the needle and the question, which take {fixed}")
    sentences = haystack(tokenizer, rng, total_tokens - fixed)
    for other in others:
        sentences.insert(rng.randint(0, len(sentences)), other)
    prompt = fit(tokenizer, sentences, needle, depth, answer, total_tokens)
    return PasskeySample(prompt, key, answer, depth, count(tokenizer, prompt), total_tokens, seed)


def fit(
    tokenizer: TextTokenizer, sentences: list[str], needle: str, depth: float, answer: str, total_tokens: int
) -> str:
    """The prompt, padded to the exact length with short words before the question."""
    padding = ""
    while True:
        prompt = assemble(sentences, needle, depth, padding)
        length = count(tokenizer, prompt + answer)
        if length == total_tokens:
            return prompt
        if length > total_tokens:
            if not sentences:
                raise ValueError(f"this tokenizer allows no prompt of exactly {total_tokens} tokens")
            sentences, padding = sentences[:-1], ""
            continue
        # Only the end changes. A long prompt would take as long as all its sentences to be cut again for each word.
        before = length - count(tokenizer, padding + QUESTION + answer)
        grown = (padding + word for word in PAD_WORDS)
        lengths = {p: before + count(tokenizer, p + QUESTION + answer) for p in grown}
        fitting = [p for p, n in lengths.items() if length < n <= total_tokens]
        if not fitting:
            raise ValueError(f"this tokenizer allows no prompt of exactly {total_tokens} tokens")
        padding = fitting[len(padding) % len(fitting)]


def is_correct(sample: PasskeySample, completion: str) -> bool:
    """Whether the completion starts with the key and the number ends there."""
    text = completion.lstrip()
    return text.startswith(sample.key) and not text[len(sample.key) : len(sample.key) + 1].isdigit()


def wilson_interval(correct: int, samples: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % Wilson score interval of an accuracy."""
    if samples == 0:
        return 0.0, 1.0
    rate = correct / samples
    centre = rate + z * z / (2 * samples)
    spread = z * math.sqrt(rate * (1 - rate) / samples + z * z / (4 * samples * samples))
    scale = 1 + z * z / samples
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
