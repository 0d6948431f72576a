"""Simple English sentences without digits, the haystack in which a pass key is hidden."""

from __future__ import annotations

import random

CLASSIC = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
WHO = (
    "The baker", "A sailor", "My neighbor", "The old teacher", "A young painter", "The gardener", "Her brother",
    "The captain", "A quiet child", "The doctor", "Our guide", "The farmer", "A tall stranger", "The librarian",
    "His sister", "The carpenter", "A tired driver", "The queen", "Their cook", "The postman",
)  # fmt: skip
DOES = (
    "carries", "finds", "paints", "sells", "repairs", "hides", "watches", "cleans", "opens", "forgets", "borrows",
    "measures", "draws", "remembers", "moves", "brings", "loses", "keeps",
)  # fmt: skip
WHAT = (
    "a red lamp", "the wooden box", "an old map", "the silver spoon", "a heavy stone", "the blue door", "a small boat",
    "the broken clock", "a warm coat", "the long letter", "a green bottle", "the iron gate", "a paper bird",
    "the white horse", "a basket of apples", "the garden chair", "a piece of bread", "the last ticket",
)  # fmt: skip
WHERE = (
    "near the harbor", "in the morning", "behind the house", "on the hill", "after the rain", "at the market",
    "under the bridge", "before dinner", "by the river", "in the city", "along the road", "during the winter",
    "across the field", "without a word",
)  # fmt: skip


def sentence(rng: random.Random) -> str:
    """One sentence; a fifth of them come from the classic haystack."""
    if rng.random() < 0.2:
        return rng.choice(CLASSIC)
    parts = [rng.choice(WHO), rng.choice(DOES), rng.choice(WHAT)]
    if rng.random() < 0.7:
        parts.append(rng.choice(WHERE))
    return " ".join(parts) + "."


def paragraph(rng: random.Random, sentences: int) -> str:
    return " ".join(sentence(rng) for _ in range(sentences))
