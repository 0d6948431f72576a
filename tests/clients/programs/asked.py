"""What every client asks the demo, and what it should be answered: ``asked.json``."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

ADDRESS = os.environ["CLIENT_ADDRESS"]
KEY = os.environ["CLIENT_KEY"]
WRONG_KEY = f"not-{KEY}"

_ASKED: dict[str, Any] = json.loads(pathlib.Path(__file__).with_name("asked.json").read_text(encoding="utf-8"))

MODEL: str = _ASKED["model"]
QUESTION: str = _ASKED["question"]
ANSWER: str = _ASKED["answer"]
ANSWER_TOKENS: int = _ASKED["answer_tokens"]

# With an answer of LONG_TOKENS it outgrows the trained length.
LONG: str = _ASKED["sentence"] * _ASKED["long_sentences"]
LONG_TOKENS: int = _ASKED["long_tokens"]
CROSSINGS: list[dict[str, Any]] = _ASKED["crossings"]

TOO_LONG: str = _ASKED["sentence"] * _ASKED["too_long_sentences"]
LONGEST: str = _ASKED["longest"]  # in tokens, in what the server says
UNKNOWN_KEY: str = _ASKED["unknown_key"]  # in what it says of another key

# Of an answer that is left after a few pieces.
CANCELLED_TOKENS: int = _ASKED["cancelled_tokens"]
READ_PIECES: int = _ASKED["read_pieces"]
