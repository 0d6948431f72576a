"""Training sequences: text, copies of random strings, named needles with queries, and pass key prompts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from posenc_runtime.zoo import filler, passkey
from posenc_runtime.zoo.tokenizer import end_of_text_id

Ids = NDArray[np.int64]
Mask = NDArray[np.float32]

# Each is a statement and a query. {name} and {value} are replaced, and the query ends where its value begins.
TEMPLATES = (
    (" The {name} code is{value}.", " What is the {name} code? The {name} code is"),
    (" The {name} number is{value}. Remember it.", " What is the {name} number? The {name} number is"),
    (" {name} ={value};", " {name} ="),
    ("\n{name}:{value}\n", "\n{name}:"),
    (" {name} ->{value},", " {name} ->"),
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHAT_QUESTIONS = (" What is the pass key?\nAssistant:", "\nWhat is the pass key?\nAssistant:")


@dataclass(frozen=True)
class Mix:
    """How often each kind of sequence is drawn, and how many needles it may hold."""

    copy: float = 0.3
    needles: float = 0.35
    passkey: float = 0.2
    text: float = 0.15
    max_needles: int = 8


@dataclass
class Draft:
    """Token ids, and a mask of the tokens that a model can predict only by looking back."""

    ids: list[int] = field(default_factory=list)
    recalled: list[int] = field(default_factory=list)

    def add(self, ids: list[int], recalled: bool = False) -> None:
        self.ids += ids
        self.recalled += [int(recalled)] * len(ids)


class SequenceMaker:
    """Makes batches that depend only on the seed and the step, so that a resumed run sees the same data."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, corpus_ids: Ids, seed: int) -> None:
        self.tokenizer = tokenizer
        self.corpus_ids = corpus_ids
        self.seed = seed
        self.end = end_of_text_id(tokenizer)
        rng = random.Random(seed)
        self.sentence_ids = np.asarray(tokenizer.encode(" " + filler.paragraph(rng, 20_000)), dtype=np.int64)
        self.classic_ids = np.asarray(tokenizer.encode(" " + " ".join(filler.CLASSIC * 200)), dtype=np.int64)
        self.encode = lru_cache(maxsize=50_000)(self._encode)
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        words = {w for w in vocabulary if w.startswith("Ġ") and w[1:].isalpha() and len(w) > 3}
        self.words = sorted(w[1:] for w in words if w[1:].isascii())
        self.digits = self.encode("0123456789")

    def _encode(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text)]

    def batch(self, step: int, length: int, size: int, mix: Mix) -> tuple[Ids, Mask]:
        """`size` sequences of `length` tokens, and the mask of recalled tokens."""
        rng = random.Random(f"{self.seed}:{step}")
        drafts = [self.sequence(rng, length, mix) for _ in range(size)]
        ids = np.asarray([d.ids for d in drafts], dtype=np.int64)
        return ids, np.asarray([d.recalled for d in drafts], dtype=np.float32)

    def sequence(self, rng: random.Random, length: int, mix: Mix) -> Draft:
        kinds = (self.copy, self.needles, self.passkey, self.text)
        kind = rng.choices(kinds, (mix.copy, mix.needles, mix.passkey, mix.text))[0]
        draft = kind(rng, length, mix)
        if len(draft.ids) != length:
            raise AssertionError(f"{kind.__name__} made {len(draft.ids)} tokens instead of {length}")
        return draft

    def haystack(self, rng: random.Random, length: int) -> list[int]:
        """Library text or simple sentences; sometimes the classic sentences again and again, or random tokens."""
        draw = rng.random()
        if draw < 0.08:
            return [rng.randrange(1, len(self.tokenizer)) for _ in range(length)]
        source = self.corpus_ids if draw < 0.45 else self.sentence_ids if draw < 0.9 else self.classic_ids
        start = rng.randrange(len(source) - length)
        return [int(i) for i in source[start : start + length]]

    def text(self, rng: random.Random, length: int, mix: Mix) -> Draft:
        draft = Draft()
        start = rng.randrange(len(self.corpus_ids) - length)
        draft.add([int(i) for i in self.corpus_ids[start : start + length]])
        return draft

    def copy(self, rng: random.Random, length: int, mix: Mix) -> Draft:
        """A random string, a haystack, and the string again. The mask leaves out the second copy's first two tokens."""
        size = rng.randint(6, max(6, min(96, length // 2 - 4)))
        pool = self.digits if rng.random() < 0.3 else range(1, len(self.tokenizer))
        string = rng.choices(pool, k=size)
        room = length - 2 * size
        before = rng.randint(0, room)
        between = rng.randint(0, room - before)
        hay = self.haystack(rng, room)
        draft = Draft()
        draft.add(hay[:before])
        draft.add(string)
        draft.add(hay[before : before + between])
        draft.add(string[:2])
        draft.add(string[2:], recalled=True)
        draft.add(hay[before + between :])
        return draft

    def name(self, rng: random.Random) -> str:
        if rng.random() < 0.5:
            return rng.choice(self.words)
        return "".join(rng.choices(LETTERS, k=3))

    def value(self, rng: random.Random) -> list[int]:
        if rng.random() < 0.8:
            return self.encode(" ") + rng.choices(self.digits, k=rng.choice((3, 4, 5, 5, 5, 6)))
        return self.encode(" " + rng.choice(self.words)) + self.encode(" " + rng.choice(self.words))

    def needles(self, rng: random.Random, length: int, mix: Mix) -> Draft:
        """Several named values in a haystack, then queries for some of the values in another order."""
        statement, query = rng.choice(TEMPLATES)
        head, after = statement.split("{value}")
        stated: list[list[int]] = []
        asked: list[tuple[list[int], list[int]]] = []
        used = 0
        wanted = rng.randint(1, mix.max_needles)
        for name in dict.fromkeys(self.name(rng) for _ in range(wanted)):
            value = self.value(rng)
            told = self.encode(head.format(name=name)) + value + self.encode(after)
            question = self.encode(query.format(name=name))
            close = len(told) + len(question) + len(value) + 1
            if used + close > length:
                break
            used += close
            stated.append(told)
            asked.append((question, value))
        rng.shuffle(asked)
        kept = asked[: rng.randint((len(asked) + 1) // 2, len(asked))]
        tail = Draft()
        for question, value in kept:
            tail.add(question)
            tail.add(value, recalled=True)
            tail.add(self.encode(after)[:1])
        return self.hide(rng, stated, tail, length)

    def passkey(self, rng: random.Random, length: int, mix: Mix) -> Draft:
        """A pass key prompt with its answer, as plain text or as a chat, sometimes among other codes."""
        digits = rng.choices(self.digits, k=5)
        told, between, after = (self.encode(part) for part in passkey.NEEDLE.split("{key}"))
        needle = told + digits + between + digits + after
        if rng.random() < 0.2:
            needle = told + digits + self.encode(".")
        stated = [needle]
        if rng.random() < 0.3 and length > 160:
            for _ in range(rng.randint(1, 4)):
                other = self.encode(f" The {self.name(rng)} code is ") + rng.choices(self.digits, k=5)
                stated.append(other + self.encode("."))
        tail = Draft()
        chat = rng.random() < 0.25
        if chat:
            tail.add(self.encode(rng.choice(CHAT_QUESTIONS)) + self.encode(" The pass key is"))
        else:
            tail.add(self.encode(passkey.QUESTION))
        tail.add(self.encode(" ") + digits + self.encode("."), recalled=True)
        tail.add([self.end], recalled=True)
        opening = self.encode("User:") if chat else []
        return self.hide(rng, stated, tail, length, opening)

    def hide(
        self, rng: random.Random, stated: list[list[int]], tail: Draft, length: int, opening: list[int] | None = None
    ) -> Draft:
        """The statements at random places of a haystack, then the tail. The haystack fills up the length."""
        draft = Draft()
        draft.add(opening or [])
        room = length - len(draft.ids) - len(tail.ids) - sum(map(len, stated))
        while room < 0:
            room += len(stated.pop())
        hay = self.haystack(rng, room)
        rng.shuffle(stated)
        place = 0
        for cut, ids in zip(sorted(rng.randint(0, room) for _ in stated), stated, strict=True):
            draft.add(hay[place:cut])
            draft.add(ids)
            place = cut
        draft.add(hay[place:])
        draft.ids += tail.ids
        draft.recalled += tail.recalled
        return draft
