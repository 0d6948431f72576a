"""The tokenizer that cuts texts into tokens, the same for all targets of an evaluation."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from server.evaluation import EvaluationRefused


class Tokens:
    """A checkpoint's tokenizer.

    Args:
        place: a folder or a name on a hub.

    Raises:
        EvaluationRefused: when no tokenizer can be loaded from there.
    """

    def __init__(self, place: str) -> None:
        from transformers import AutoTokenizer
        from transformers.utils import logging

        from posenc_runtime.vllm_adapter.checkpoint import hub

        logging.set_verbosity_error()  # a book is longer than the model's window, which it warns of
        try:
            found = hub.at_hand(place, {})  # an answer within seconds, where a hub is out of reach
            if found.out_of_reach:
                hub.stay_offline()
            self._tokenizer: Any = AutoTokenizer.from_pretrained(place)
        except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
            raise EvaluationRefused(
                f"--tokenizer: no tokenizer can be loaded from {place!r}: {hub.reason_of(error)}: give the model's "
                "folder or name"
            ) from None
        self.place, self._folder = place, found.place
        self.start: list[int] = self._tokenizer.encode("")[:1]  # what the model expects before a text, if anything

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, without those that a template adds."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return found

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        found: str = self._tokenizer.decode(list(ids))
        return found

    def fingerprint(self) -> str:
        """The same for tokenizers that cut texts alike."""
        vocabulary = json.dumps(sorted(self._tokenizer.get_vocab().items()))
        sample = "The 1,234 naïve  foxes\n\tdon't jump: 你好, Grüße! x_i = f(3.14)"
        told = f"{vocabulary}{self._tokenizer.encode(sample)}"
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def trained_length(self) -> int | None:
        """The trained length that ``config.json`` beside the tokenizer gives, tokens; None where there is none."""
        try:
            config = json.loads((pathlib.Path(self._folder) / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        config = config.get("text_config") or config
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        found = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
        found = found or config.get("max_position_embeddings")
        return found if isinstance(found, int) else None
