"""Texts to measure with: a file, or a folder of them, cut into pieces that do not overlap."""

from __future__ import annotations

import gzip
import hashlib
import html.parser
import pathlib
import random
import re
from collections.abc import Sequence

from server.evaluation import EvaluationRefused

_PLAIN = (".txt", ".md", ".rst", ".tex")
_HTML = (".html", ".htm", ".xhtml")
_BLOCKS = frozenset(
    ("p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "li", "pre", "tr", "br", "dt", "dd", "blockquote", "title", "td")
)
_SILENT = frozenset(("script", "style", "head"))


def read(place: pathlib.Path) -> str:
    """All text of a file, or of a folder's files in the order of their names.

    Takes text, Markdown and HTML, also compressed by gzip.

    Raises:
        EvaluationRefused: when there is no text.
    """
    kinds = ", ".join((*_PLAIN, *_HTML))
    try:
        files = sorted(each for each in place.rglob("*") if _kind(each)) if place.is_dir() else [place]
        texts = [text for each in files if (text := _text_of(each).strip())]
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationRefused(f"--text: {place} must be a file of text, or a folder of them: {error}") from None
    if not texts:
        raise EvaluationRefused(f"--text: {place} has no text: it must be a file, or have files that end with {kinds}")
    return "\n\n".join(texts)


def pieces(ids: Sequence[int], length: int, samples: int, seed: int) -> list[list[int]]:
    """Pieces of a text, which do not overlap, drawn with a seed.

    Args:
        length: of each piece, tokens.

    Raises:
        EvaluationRefused: when the text is too short.
    """
    fit = len(ids) // length
    if fit < samples:
        raise EvaluationRefused(
            f"--text: {samples} pieces of {length:,} tokens need {samples * length:,} tokens, but the text has "
            f"{len(ids):,}: give more text, or --samples {fit or 1}" + (" and a smaller --length" if not fit else "")
        )
    chosen = random.Random(f"{seed}/{length}").sample(range(fit), samples)
    spare = (len(ids) - fit * length) // 2
    return [list(ids[spare + number * length : spare + (number + 1) * length]) for number in chosen]


def fingerprint(text: str) -> str:
    """The same for the same text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kind(file: pathlib.Path) -> str:
    name = file.name.lower().removesuffix(".gz")
    return next((ending for ending in (*_PLAIN, *_HTML) if name.endswith(ending)), "")


def _text_of(file: pathlib.Path) -> str:
    raw = file.read_bytes()
    if file.name.lower().endswith(".gz"):
        raw = gzip.decompress(raw)
    text = raw.decode("utf-8")
    if _kind(file) in _HTML:
        reader = _Reader()
        reader.feed(text)
        reader.close()
        text = "".join(reader.found)
        # Outside of <pre> spaces and line ends mean nothing; empty lines part paragraphs.
        text = re.sub(r"[ \t]+", " ", text)
        text = re.sub(r" ?\n\s*\n\s*", "\n\n", text)
    return text


class _Reader(html.parser.HTMLParser):
    """Collects what a page shows as text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._silent = self._as_written = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in _SILENT
        self._as_written += tag == "pre"
        if tag in _BLOCKS:
            self.found.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in _SILENT and self._silent > 0
        self._as_written -= tag == "pre" and self._as_written > 0
        if tag in _BLOCKS:
            self.found.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.found.append(data if self._as_written else re.sub(r"\s+", " ", data))
