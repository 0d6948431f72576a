"""ReRoPE by pages (Su 2023, kexue.fm/archives/9708): keys beyond a window are all about one window away.

ReRoPE sets the distance of every key beyond the window w to w itself. A key that is cached at its own position cannot
serve two distances at once, unless its query turns. So here a page keeps the order of its keys, and the query is turned
once for each page: key j of the page that begins at j0 is at distance ``w - (j - j0)``, the query at ``w + j0``. The
window begins at a page's edge. Leaky ReRoPE keeps an order among pages: with a leak k, the distance is
``w + (i - w - j0) / k - (j - j0)``. Here it grows no further than the trained length c, so that requests of any length
have trained distances: it is ``min(w + (i - w - j0) / k, c - 1) - (j - j0)``.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import ClassVar, Literal

from posenc_runtime.encodings.far_pages import FarPages, Leak, Temperature, default_page


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReRope:
    """Keys of the window at their trained distances, and older pages at the window's, or at ones that grow slowly.

    Attributes:
        window: tokens, a multiple of ``page``. None takes half of the trained length, rounded down to whole pages.
        page: tokens, a multiple of the cache's block. None takes an eighth of the trained length, rounded down as
            ``default_page`` does.
        temperature: see ``FarPages``.
        leak: k of leaky ReRoPE, at least 1, where 1 is plain RoPE up to the trained length. ``none`` is ReRoPE.

    Raises:
        ValueError: when a value is out of range.
    """

    name: ClassVar[str] = "rerope"
    window: int | None = None
    page: int | None = None
    temperature: Temperature = "logn"
    leak: float | Literal["none"] = "none"

    def __post_init__(self) -> None:
        for name in ("window", "page"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 token, got {value}")
        if self.leak != "none" and self.leak < 1:
            raise ValueError(
                f"leak must be none or at least 1, where 1 is plain RoPE, got {self.leak}: give a larger one for "
                "distances that grow less, or none for distances that do not grow"
            )
        if self.window is not None and self.page is not None:
            _check(self.window, self.page)

    def pages(self, trained_length: int, block_size: int | None = None) -> FarPages:
        """See ``ReadTimeMethod.pages``.

        Raises:
            ValueError: when the page is no multiple of the block, when the window is no multiple of the page or smaller
                than it, or when near keys would be at distances that the model was not trained for.
        """
        block = block_size or 1
        page = self.page or default_page(trained_length // 8, block_size)
        if not page:
            raise ValueError(
                f"page must be given where an eighth of the trained length is less than a block of {block} tokens, got "
                f"a trained length of {trained_length}: {_pages_within(trained_length, block)}"
            )
        if page % block:
            raise ValueError(
                f"page must be a multiple of the KV cache's block of {block} tokens, got {page}: take "
                f"{max(page // block, 1) * block}, or another block_size"
            )
        window = self.window or max(trained_length // 2 // page, 1) * page
        _check(window, page)
        if window + page > trained_length:
            largest = (trained_length // page - 1) * page
            lower = f"take a window of {largest} or less" if largest > 0 else _pages_within(trained_length, block)
            raise ValueError(
                f"window and page must together be at most the trained length of {trained_length} tokens, because near "
                f"keys are at distances of up to both, got {window} and {page}: {lower}"
            )
        return FarPages(
            trained_length=trained_length,
            page=page,
            edge=window - 1,
            distance=window if self.leak == "none" else trained_length - 1,
            leak=None if self.leak == "none" else Leak(Fraction(self.leak), window),
            temperature=self.temperature,
            tempered_from=trained_length,
        )


def _check(window: int, page: int) -> None:
    if page > window:
        raise ValueError(
            f"page must be at most the window of {window} tokens, because the keys of a far page are nearer than the "
            f"window by up to a page, got {page}: take a smaller page or a larger window"
        )
    if window % page:
        raise ValueError(
            f"window must be a multiple of the page of {page} tokens, got {window}: take {window // page * page} or "
            f"{(window // page + 1) * page}"
        )


def _pages_within(trained_length: int, block: int) -> str:
    """What to do where pages are too long: a window has at least one page, and both are within the trained length."""
    if 2 * block > trained_length:
        return f"use blocks of {trained_length // 2} tokens or less (engine.block_size)"
    return f"take a page of {trained_length // 2 // block * block} or less, or smaller blocks (engine.block_size)"


METHOD = ReRope
