"""API keys, as a file and the environment name them. Only their hashes are kept."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping

from posenc_runtime.vllm_adapter.settings.front_end import AccessSettings
from posenc_runtime.vllm_adapter.settings.section import SettingRefused

VARIABLE = "POSENC_API_KEYS"  # keys in the environment, each on a line of its own, or with commas between them

_LARGEST_FILE = 2**20  # bytes
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_KEY = re.compile(r"[!-+\--9;-~]+")  # what a header can carry, without commas and colons


class KeysRefused(ValueError):
    """Keys that cannot be read; the message says where and why, and has no key in it."""


@dataclasses.dataclass(frozen=True)
class ApiKey:
    """A key: its name, and the SHA-256 of its text. A key without a name is called by the start of its hash."""

    name: str
    digest: bytes

    @classmethod
    def of(cls, text: str, name: str | None = None) -> ApiKey:
        """The key with this text."""
        digest = hashlib.sha256(text.encode()).digest()
        return cls(name or _called_by(digest), digest)


def in_environment(environment: Mapping[str, str] = os.environ) -> list[ApiKey]:
    """The keys of ``POSENC_API_KEYS``; none where it is not set.

    Raises:
        KeysRefused: when it is set and has an entry that is no key, or none at all.
    """
    if VARIABLE not in environment:
        return []
    return _keys(re.split(r"[,\n]", environment[VARIABLE]), VARIABLE, "entry")


def in_file(path: pathlib.Path) -> list[ApiKey]:
    """The keys of a file, one on each line: ``KEY``, ``NAME: KEY``, or ``sha256:HASH`` in place of the key.

    Empty lines, and lines that begin with #, are left out.

    Raises:
        KeysRefused: when it cannot be read, has a line that is no key, or none at all.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise KeysRefused(f"{path}: must have at most {_LARGEST_FILE} bytes")
        return _keys(content.decode().splitlines(), str(path), "line")
    except OSError as error:
        raise KeysRefused(f"{path}: must be a file that can be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KeysRefused(f"{path}: must be a text in UTF-8") from None


def refuse_unreadable(access: AccessSettings, environment: Mapping[str, str] = os.environ) -> None:
    """Read the keys that the settings and the environment name.

    Raises:
        SettingRefused: when they cannot be read.
    """
    try:
        in_environment(environment)
    except KeysRefused as error:
        raise SettingRefused(str(error)) from None
    if access.keys_file is not None:
        try:
            in_file(pathlib.Path(access.keys_file))
        except KeysRefused as error:
            raise SettingRefused(f"access.keys_file: {error}") from None


def _keys(entries: Iterable[str], source: str, unit: str) -> list[ApiKey]:
    found: dict[bytes, ApiKey] = {}
    for number, key in _each(entries, source, unit):
        if (other := found.setdefault(key.digest, key)) is not key:
            raise KeysRefused(
                f"{source}: {unit} {number} must have a key of its own, got the key of {other.name} again"
            )
    if not found:
        raise KeysRefused(f"{source}: must have at least one key, got none")
    return list(found.values())


def _each(entries: Iterable[str], source: str, unit: str) -> Iterator[tuple[int, ApiKey]]:
    for number, entry in enumerate(map(str.strip, entries), start=1):
        if not entry or entry.startswith("#"):
            continue
        named, colon, rest = entry.partition(":")
        name, text = (named.rstrip(), rest.strip()) if colon and named != "sha256" else (None, entry)
        if name is not None and not _NAME.fullmatch(name):
            raise KeysRefused(
                f"{source}: the name in {unit} {number} must be 1 to 64 letters, digits, dots, underscores or hyphens"
            )
        if text.startswith("sha256:"):
            if (hashed := _HASHED.fullmatch(text)) is None:
                raise KeysRefused(f"{source}: the hash in {unit} {number} must be sha256: and 64 hexadecimal digits")
            digest = bytes.fromhex(hashed[1])
            yield number, ApiKey(name or _called_by(digest), digest)
        elif _KEY.fullmatch(text):
            yield number, ApiKey.of(text, name)
        else:
            raise KeysRefused(
                f"{source}: the key in {unit} {number} must be printable ASCII without spaces, commas and colons"
            )


def _called_by(digest: bytes) -> str:
    return f"key-{digest.hex()[:8]}"
