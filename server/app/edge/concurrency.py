"""How many requests may be under way, and how many sequences may wait."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Hashable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from server.app.edge.error_answers import RequestRefused

if TYPE_CHECKING:
    from posenc_runtime.vllm_adapter.settings.front_end import LimitSettings

_RETRY_AFTER_SECONDS = 1


class UnderWay:
    """The requests that one API server has taken and not yet answered."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._requests: collections.Counter[Hashable] = collections.Counter()
        self._sequences = self._bytes = 0

    @contextlib.contextmanager
    def request(self, key: Hashable) -> Iterator[None]:
        """Take a request.

        Args:
            key: whose it is.

        Raises:
            RequestRefused: when too many of that key are under way.
        """
        allowed = self._limits.max_requests_per_key
        if self._requests[key] >= allowed:
            raise _full(f"{allowed} requests are under way (limits.max_requests_per_key)", "requests_per_key")
        self._requests[key] += 1
        try:
            yield
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]

    @contextlib.contextmanager
    def body(self) -> Iterator[Callable[[bytes], None]]:
        """Count the bytes of a body, until the request is answered; gives what is called with each piece.

        That raises ``RequestRefused`` when all bodies together are too long.
        """
        size = 0

        def heard(piece: bytes) -> None:
            nonlocal size
            if self._bytes + len(piece) > self._limits.max_bytes_in_flight:
                raise _full(
                    f"requests under way have {self._limits.max_bytes_in_flight} bytes (limits.max_bytes_in_flight)",
                    "bytes_in_flight",
                )
            size += len(piece)
            self._bytes += len(piece)

        try:
            yield heard
        finally:
            self._bytes -= size

    @contextlib.contextmanager
    def sequences(self, asked: int, running: int, held: int) -> Iterator[None]:
        """Take the sequences of a request.

        Args:
            asked: by the request.
            running: sequences that the engine has room for at once.
            held: sequences that the engine has, also those of requests that are answered and go on in the background.

        Raises:
            RequestRefused: when too many wait. A request is never refused while there is no other.
        """
        taken = max(self._sequences, held)
        if taken and taken + asked > running + self._limits.max_queued:
            raise _full(
                f"{self._limits.max_queued} sequences may wait (limits.max_queued) while {running} run, and the server "
                f"has {taken}",
                "queued",
            )
        self._sequences += asked
        try:
            yield
        finally:
            self._sequences -= asked


def _full(why: str, setting: str) -> RequestRefused:
    return RequestRefused(
        f"the server is full: {why}. Try again later",
        f"max_{setting}",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        retry_after=_RETRY_AFTER_SECONDS,
    )
