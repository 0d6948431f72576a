"""Three replacements for a request's list of block hashes: computed when read, of a history, and unique names.

vLLM keeps a list of block hashes in every request and appends to it as the request grows. A replacement always has as
many entries as the request has full blocks.
"""

from __future__ import annotations

import abc
import hashlib
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from vllm.v1.request import Request


class LazyHashes(Sequence[bytes], abc.ABC):
    """One hash for each full block of a request, computed when it is read.

    Args:
        block_size: tokens, vLLM's ``hash_block_size``.
    """

    def __init__(self, request: Request, block_size: int) -> None:
        # The request owns its hashes: a strong reference back would keep both until the garbage collector runs.
        self._request = weakref.proxy(request)
        self._block_size = block_size

    def __len__(self) -> int:
        num_tokens: int = self._request.num_tokens
        return num_tokens // self._block_size

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        numbers = range(len(self))[index]  # raises IndexError as a list does
        return self._hash(numbers) if isinstance(numbers, int) else _Part(self, numbers)

    def extend(self, new: Iterable[bytes]) -> None:
        """vLLM appends hashes by this method; all are here already, so ``new`` must be empty."""
        if any(True for _ in new):
            raise ValueError("a request must have exactly one hash for each full block, got more")

    @abc.abstractmethod
    def _hash(self, number: int) -> bytes:
        """The hash of the full block of this number; it covers all tokens up to the end of the block."""


class PrivateHashes(LazyHashes):
    """Unique names in the place of hashes: no other request finds a block in the prefix cache by them. Decision 22.

    vLLM's events for routers say the last 64 bits of a name, so these are unique, too.
    """

    def __init__(self, request: Request, block_size: int) -> None:
        super().__init__(request, block_size)
        self._own = os.urandom(32)

    def _hash(self, number: int) -> bytes:
        return hashlib.blake2b(number.to_bytes(8, "big"), key=self._own, digest_size=32).digest()


class SaltedHashes(LazyHashes):
    """The hashes that vLLM would compute for a request under another salt, computed as far as somebody reads them.

    Args:
        known: the first of the hashes, if somebody has computed them already.
    """

    def __init__(
        self, request: Request, block_size: int, cache_salt: str | None, known: Sequence[bytes] | None = None
    ) -> None:
        super().__init__(request, block_size)
        self._excerpt = _Excerpt(request, cache_salt)
        self._excerpt.block_hashes += known or ()

    def _hash(self, number: int) -> bytes:
        found = self._excerpt.block_hashes
        if number >= len(found) and self._request._block_hasher is not None:
            self._excerpt.num_tokens = (number + 1) * self._block_size
            found += self._request._block_hasher(self._excerpt)
        return found[number]


class CrossedHashes(LazyHashes):
    """Names of what a request has cached after a crossing: made of the hashes of its first scale, and of its history.

    Decision 75.

    Args:
        of_first: the hashes at the request's first scale; they say its tokens, its salt and that scale.
        regime_name: ``kv.regime.history``.
    """

    def __init__(self, request: Request, block_size: int, of_first: Sequence[bytes], regime_name: str) -> None:
        super().__init__(request, block_size)
        self._of_first = of_first
        self._key = hashlib.blake2b(regime_name.encode(), digest_size=32).digest()

    def _hash(self, number: int) -> bytes:
        return hashlib.blake2b(self._of_first[number], key=self._key, digest_size=32).digest()


class _Excerpt:
    """The first ``num_tokens`` tokens of a request, under another salt, in the form that vLLM's hasher reads."""

    def __init__(self, request: Request, cache_salt: str | None) -> None:
        self._request = weakref.proxy(request)
        self.cache_salt = cache_salt
        self.block_hashes: list[bytes] = []
        self.num_tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class _Part(Sequence[bytes]):
    """A slice of the hashes; a hash of it is computed when it is read, too."""

    def __init__(self, hashes: LazyHashes, numbers: range) -> None:
        self._hashes = hashes
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        numbers = self._numbers[index]
        return self._hashes[numbers] if isinstance(numbers, int) else _Part(self._hashes, numbers)
