"""The API keys that a server knows, and the key that a request shows."""

from __future__ import annotations

import hashlib
import hmac
import logging
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence

from posenc_runtime.vllm_adapter.settings.api_keys import ApiKey, KeysRefused, in_file

logger = logging.getLogger("vllm.posenc")

_SECONDS_BETWEEN_LOOKS = 1.0
_LONGEST = 1024  # bytes of a key; longer ones are no keys, and are not hashed


class Keyring:
    """Keys that stay, and keys of a file, which is read anew when it changes.

    Where the changed file cannot be read, its former keys stay valid, and the log says so once.

    Args:
        staying: keys of the environment and of vLLM's own arguments.
        file: where more keys are.
        now: a clock, in seconds.

    Raises:
        KeysRefused: when the file cannot be read.
    """

    def __init__(
        self,
        staying: Iterable[ApiKey] = (),
        file: pathlib.Path | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._staying, self._file, self._now = tuple(staying), file, now
        self._state = _state(file)
        self._of_file = [] if file is None else in_file(file)
        self._next_look = now() + _SECONDS_BETWEEN_LOOKS
        self._said: str | None = None

    def __bool__(self) -> bool:
        """Whether requests need a key."""
        return bool(self._staying or self._file)

    def name_of(self, shown: Sequence[bytes]) -> str | None:
        """The name of the first key that is known; None where none is.

        The time that it takes says nothing about known keys.

        Args:
            shown: keys that a request shows.
        """
        self._look()
        names = [self._name(each) for each in shown if len(each) <= _LONGEST]
        return next((name for name in names if name is not None), None)

    def _name(self, shown: bytes) -> str | None:
        name, digest = None, hashlib.sha256(shown).digest()
        for key in (*self._staying, *self._of_file):
            if hmac.compare_digest(key.digest, digest):
                name = key.name
        return name

    def _look(self) -> None:
        if self._file is None or self._now() < self._next_look:
            return
        self._next_look = self._now() + _SECONDS_BETWEEN_LOOKS
        if (state := _state(self._file)) == self._state:
            return
        try:
            self._of_file, self._state = in_file(self._file), state
        except KeysRefused as error:
            if str(error) != self._said:
                logger.warning("access.keys_file: %s; the keys read before stay valid", error)
                self._said = str(error)
        else:
            self._said = None
            logger.info("access.keys_file: read anew, %d keys", len(self._of_file))


def keys_shown(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys in ``Authorization: Bearer KEY`` and ``x-api-key: KEY``; of several headers of a name, the first.

    Args:
        headers: of an ASGI scope, their names in lower case.
    """
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        given.setdefault(name, value)
    scheme, _, bearer = given.get(b"authorization", b"").strip().partition(b" ")
    of_bearer = bearer.strip() if scheme.lower() == b"bearer" else b""
    return [key for key in (of_bearer, given.get(b"x-api-key", b"").strip()) if key]


def _state(file: pathlib.Path | None) -> tuple[int, ...] | None:
    """What changes when a file is written or replaced, be it through a link to it; None where there is none."""
    if file is None:
        return None
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
