"""Addresses to listen at, as settings write them: ``127.0.0.1:9000``, ``[::1]:9000``."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple, Self

_WRITTEN = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")


def is_address(text: str) -> bool:
    """Whether a text is an address to listen at: a host, and a port from 1 to 65535."""
    found = _WRITTEN.fullmatch(text)
    return found is not None and 1 <= int(found["port"]) <= 65535


class Address(NamedTuple):
    """An address to listen at."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Self:
        """The address that a text names; ``is_address`` tells whether it names one.

        Raises:
            ValueError: when it names none.
        """
        if (found := _WRITTEN.fullmatch(text)) is None:
            raise ValueError(f"an address must be a host and a port, such as 127.0.0.1:9000, got {text!r}")
        return cls(found["v6"] or found["host"], int(found["port"]))

    @property
    def is_of_this_machine(self) -> bool:
        """Whether only programs on this machine reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
