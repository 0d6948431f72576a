"""How deep and how wide a JSON text is, found while it arrives, before anything is made of it.

A text of a few kilobytes can have a parser or a validator take seconds and gigabytes. What is counted here bounds both.
Each piece of a text is counted in a few operations of numpy, whatever its bytes are. Whether it is JSON at all is left
to the parser: where it is not, the counts may be wrong, and the parser refuses it without making anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from server.app.edge.error_answers import RequestRefused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from posenc_runtime.vllm_adapter.settings.front_end import LimitSettings

_QUOTE, _BACKSLASH, _COMMA, _U = b'"\\,u'
_OPENING, _CLOSING = b"[{", b"]}"

_IS_SPECIAL = np.zeros(256, dtype=bool)
_IS_SPECIAL[list(b'"\\,[]{}')] = True
_STEPS = np.zeros(256, dtype=np.int64)
_STEPS[list(_OPENING)] = 1
_STEPS[list(_CLOSING)] = -1

# Pieces are counted together up to this size: bounds the memory of a count, and what a client pays for tiny pieces.
_PIECE_BYTES = 2**16


class Structure:
    """Counts of a JSON text.

    Attributes:
        depth: of objects and lists in each other, the largest so far.
        values: values in lists and objects.
        parts: texts, names of members, and objects and lists; each of the last two counts twice, because vLLM's models
            try it in several ways.
        escapes: backslashes, and bytes of characters that are not ASCII; a backslash before ``u`` counts three times,
            because reading four digits takes as long as reading three short escapes.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self.depth = self.values = self.escapes = 0
        self._twice_parts = 0
        self._limits = limits
        self._level = 0
        self._is_in_string = False
        self._pending = bytearray()

    @property
    def parts(self) -> int:
        return self._twice_parts // 2

    def feed(self, piece: bytes) -> None:
        """Count the next bytes of the text.

        Raises:
            RequestRefused: when the text has too much of something.
        """
        self._pending += piece
        if len(self._pending) >= _PIECE_BYTES:
            self._count_pending()

    def end(self) -> None:
        """Count what is left.

        Raises:
            RequestRefused: when the text has too much of something.
        """
        self._count_pending()

    def _count_pending(self) -> None:
        view = memoryview(bytes(self._pending))
        self._pending.clear()
        for start in range(0, len(view), _PIECE_BYTES):
            self._count(bytes(self._pending) + view[start : start + _PIECE_BYTES])
        self._refuse_too_much()

    def _count(self, piece: bytes) -> None:
        self._pending.clear()
        text = np.frombuffer(piece, dtype=np.uint8)
        where = np.flatnonzero(_IS_SPECIAL[text])
        what = text[where]
        backslashes = where[what == _BACKSLASH]
        self.escapes += len(backslashes) + int(np.count_nonzero(text & 0x80))
        escaped = _escaped(backslashes, len(text))
        self.escapes += 2 * int(np.count_nonzero(text[escaped[:-1]] == _U))
        if escaped[-1]:  # by the last byte, which the next piece begins with
            self._pending += piece[-1:]
            self.escapes -= 1
        quotes = where[what == _QUOTE]
        quotes = quotes[~escaped[quotes]]
        is_structural = (what != _QUOTE) & (what != _BACKSLASH)
        where, what = where[is_structural], what[is_structural]
        outside = what[(np.searchsorted(quotes, where) + self._is_in_string) % 2 == 0]
        self._is_in_string ^= bool(len(quotes) % 2)
        levels = self._level + np.cumsum(_STEPS[outside])
        if len(levels):
            self.depth, self._level = max(self.depth, int(levels.max())), int(levels[-1])
        opened = int(np.count_nonzero(_STEPS[outside] == 1))
        self._twice_parts += 4 * opened + len(quotes)
        self.values += opened + int(np.count_nonzero(outside == _COMMA))

    def _refuse_too_much(self) -> None:
        for name, found, what in (
            ("max_depth", self.depth, "levels of objects and lists"),
            ("max_parts", self.parts, "texts, objects and lists"),
            ("max_values", self.values, "values"),
            ("max_escapes", self.escapes, "escapes and bytes of characters that are not ASCII"),
        ):
            if found > (allowed := getattr(self._limits, name)):
                raise RequestRefused(
                    f"the body may have {allowed} {what} (limits.{name}), got {found} or more", reason=name
                )


def _escaped(backslashes: NDArray[np.intp], size: int) -> NDArray[np.bool_]:
    """Which positions follow an odd run of backslashes; one position more than the text has.

    Args:
        backslashes: positions, ascending.
        size: of the text, bytes.
    """
    escaped = np.zeros(size + 1, dtype=bool)
    if len(backslashes):
        breaks = np.flatnonzero(np.diff(backslashes) != 1)
        firsts = backslashes[np.concatenate(([0], breaks + 1))]
        lasts = backslashes[np.concatenate((breaks, [len(backslashes) - 1]))]
        escaped[lasts[(lasts - firsts) % 2 == 0] + 1] = True
    return escaped
