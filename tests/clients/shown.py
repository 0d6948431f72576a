"""What docs/clients.md shows of a client: code or commands, and what they print."""

from __future__ import annotations

import dataclasses
import itertools
import re

from tests.clients.clients import PAGE, Client
from tests.pages import section

ADDRESS = "http://127.0.0.1:8000"
KEY = "my-key"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Shown:
    """An example.

    Attributes:
        language: ``python``, ``javascript`` or ``console``.
        printed: the lines that must be among what it prints. Three dots stand for anything, and white space does not
            count.
    """

    language: str
    text: str
    printed: tuple[str, ...]

    @property
    def commands(self) -> list[str]:
        """Of an example in ``console``, without the prompt."""
        return [part.strip() for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]]

    def missing_from(self, said: str) -> list[str]:
        """The lines that were not printed."""
        lines = ["".join(line.split()) for line in said.splitlines()]
        return [line for line in self.printed if not any(map(_pattern(line).fullmatch, lines))]


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, "".join(line.split()).split("..."))))


def shown(client: Client) -> list[Shown]:
    """The examples of a client that have their output after them, in a block of text."""
    blocks = [(found[1], found[2]) for found in _FENCE.finditer(section(PAGE, client.name))]
    return [
        Shown(language, text, tuple(filter(None, printed.splitlines())))
        for (language, text), (after, printed) in itertools.pairwise(blocks)
        if after == "text"
    ]
