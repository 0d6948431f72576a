"""Positions at read time as data: the one form that kernels compute, and the protocol of a method.

Keys are cached as they were trained: each rotated once, at its own position. A query past the trained length reads old
keys as if they were nearer, and it does so page by page: a page is an aligned run of keys, and for all keys of a far
page the query is rotated to one other position. So the cache never changes, and a query needs one more rotation for
each page. What a query does depends on its own position alone, never on the length of its request. So the keys and
values of a prefix do not depend on what follows it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from fractions import Fraction
from typing import ClassVar, Literal, Protocol

Temperature = Literal["none", "logn", "yarn"]

# Another one, if the same numbers ever come to mean other distances, factors or cached keys.
_MEANING = 2

# Tokens. Kernels have lengths of requests in 32 bits.
_LONGEST = 2**31 - 1
# That a program on a GPU takes for a lone query. All of them lie in one page.
KEYS_AT_A_TIME = 64


def default_page(most: int, block_size: int | None) -> int:
    """The page of a method whose parameters do not say it, tokens; 0 if not even one block fits.

    It is whole blocks of the cache and, where there is room for one, whole runs of keys that a GPU reads at a time.

    Args:
        most: tokens that the page may have.
        block_size: tokens; None where it is not known.
    """
    block = block_size or 1
    step = math.lcm(block, KEYS_AT_A_TIME)
    return most // step * step or most // block * block


@dataclasses.dataclass(frozen=True)
class Turn:
    """The turn of a query for a page that begins d tokens before it: by ``(distance - d) * part`` tokens.

    Attributes:
        distance: tokens.
        part: what multiplies the tokens, or each pair's frequency: 1 for bounded pages, ``1 - 1 / k`` for leaking ones.
    """

    distance: int
    part: Fraction


@dataclasses.dataclass(frozen=True)
class Leak:
    """Distances that grow by one token for k tokens of text.

    Attributes:
        k: at least 1.
        begins: tokens. The first key of a page that lies d tokens back is at distance ``begins + (d - begins) / k``.

    Raises:
        ValueError: when k is below 1.
    """

    k: Fraction
    begins: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k of a leak must be at least 1, got {self.k}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FarPages:
    """Which pages are far from a query, the position to which the query is turned for each, and its logits' factor.

    A query at a position below ``trained_length`` is stock: all keys are near, and the factor is 1.

    Attributes:
        trained_length: tokens.
        page: keys of a page; page m has the keys from ``m * page`` on.
        edge: tokens. Page ``floor((position - edge) / page)`` and all after it are near: the query stays at its own
            position, so that keys are at their trained distances. The pages before it are far.
        distance: tokens. The first key of a far page is at most this far from the query. Without a leak every one is.
            The later keys of a page are nearer by as much as they are later.
        leak: how distances grow up to ``distance``. None for pages that are all ``distance`` away.
        temperature: the factor of the logits of a query past the trained length. ``logn`` is ``ln(i + 1) / ln(L)`` (Su
            2023, kexue.fm/archives/8823), ``yarn`` is ``(0.1 ln((i + 1) / L) + 1)^2`` (arXiv:2309.00071, equation 22),
            each at least 1. Here i is the query's position, and L is ``tempered_from``.
        tempered_from: tokens, at least 2.

    Raises:
        ValueError: when a number is out of range.
    """

    trained_length: int
    page: int
    edge: int
    distance: int
    leak: Leak | None = None
    temperature: Temperature = "none"
    tempered_from: int

    def __post_init__(self) -> None:
        for name, least in (("trained_length", 1), ("page", 1), ("edge", 0), ("distance", 1), ("tempered_from", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.leak is not None and self.leak.begins > self.distance:
            raise ValueError(f"a leak must begin at a distance of at most {self.distance}, got {self.leak.begins}")

    @functools.cached_property
    def turns(self) -> tuple[Turn, ...]:
        """How queries turn for far pages: first for bounded ones, and with a leak second for those that leak."""
        bounded = Turn(self.distance, Fraction(1))
        return (bounded,) if self.leak is None else (bounded, Turn(self.leak.begins, 1 - 1 / self.leak.k))

    @functools.cached_property
    def bounded_from(self) -> int:
        """Tokens: a far page is bounded if its first key lies so far back or further. Nearer ones leak."""
        if self.leak is None:
            return 0
        return min(self.leak.begins + math.ceil((self.distance - self.leak.begins) * self.leak.k), _LONGEST)

    def first_near_key(self, position: int) -> int:
        """The first key, of a page's, that a query sees at its trained distance; 0 where all keys are near."""
        if position < self.trained_length:
            return 0
        return max(0, (position - self.edge) // self.page * self.page)

    def target(self, position: int, first_key: int) -> Fraction:
        """The position to which a query is turned for the page that begins at ``first_key``, exact."""
        if first_key >= self.first_near_key(position):
            return Fraction(position)
        back = position - first_key
        turn = self.turns[-1] if back < self.bounded_from else self.turns[0]
        return position + (turn.distance - back) * turn.part

    def factor(self, position: int) -> float:
        """What multiplies the logits of a query, at least 1."""
        if position < self.trained_length or self.temperature == "none" or position + 1 <= self.tempered_from:
            return 1.0
        if self.temperature == "logn":
            return math.log(position + 1) / math.log(self.tempered_from)
        return (0.1 * math.log((position + 1) / self.tempered_from) + 1) ** 2

    @property
    def fingerprint(self) -> str:
        """Names how queries turn: a model's hidden states past the trained length are those of all with the same name.

        Caches that several engines share are keyed by it. It does not tell apart what no query can tell apart.
        """
        said = dataclasses.asdict(self) | {"meaning": _MEANING}
        if self.temperature == "none":
            del said["tempered_from"]
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=Fraction.__str__).encode()).hexdigest()[:16]

    @property
    def farthest(self) -> int:
        """The largest distance at which a query past the trained length sees a key, tokens.

        The near keys begin with a page, so the first of them is up to a page beyond the edge.
        """
        return max(self.distance, self.edge + self.page - 1)

    @property
    def window(self) -> int:
        """The last tokens that every query sees at their trained distances."""
        return self.edge + 1


class ReadTimeMethod(Protocol):
    """A method of positions at read time. Each file of ``read_time/`` holds one, a frozen dataclass.

    Attributes:
        name: the method's, and its file's.
    """

    name: ClassVar[str]

    def pages(self, trained_length: int, block_size: int | None = None) -> FarPages:
        """The method for a model, in the form that kernels compute.

        Args:
            trained_length: tokens.
            block_size: tokens of a block of the cache, of which a page is a multiple. None leaves the page unchecked.

        Raises:
            ValueError: when the parameters do not fit the model or the cache. The message names the rule and the value.
        """
        ...
