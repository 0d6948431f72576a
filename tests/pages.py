"""README and the pages of ``docs``, taken apart for the tests that hold them to what is so."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shlex
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
# A block that no test may take at its word says so in a comment before it, with the reason.
_NOT_LOADED = re.compile(r"<!-- not loaded: .+ -->\s*\Z")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        is_told_not_to_load: a comment before it says ``not loaded``, and why.
    """

    page: pathlib.Path
    language: str
    text: str
    is_told_not_to_load: bool

    def __str__(self) -> str:
        first = next(line for line in self.text.splitlines() if line.strip())
        return f"{name(self.page)}: {first}"


def name(page: pathlib.Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages() -> list[pathlib.Path]:
    """README, and what is in ``docs`` by the order of the alphabet."""
    return [README, *sorted(DOCS.rglob("*.md"))]


def blocks(*languages: str, page: pathlib.Path | None = None) -> list[Block]:
    """The fenced blocks of some languages or of all, on one page or on all."""
    return [
        Block(each, found["language"], found["text"], bool(_NOT_LOADED.search(text[: found.start()])))
        for each in ([page] if page else pages())
        for text in [each.read_text(encoding="utf-8")]
        for found in re.finditer(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if not languages or found["language"] in languages
    ]


def prose(page: pathlib.Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def console_commands(page: pathlib.Path) -> list[str]:
    """What stands behind ``$`` in the page's console blocks, each with the lines that it goes on over."""
    return [command for block in blocks("console", page=page) for command, _ in sessions(block)]


def sessions(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        command = lines.pop(0)
        while not _is_whole(command):
            command += lines.pop(0)
        yield command.strip(), "".join(lines)


def inline_commands(page: pathlib.Path) -> list[str]:
    """Commands of ours and of make that stand in backticks in the page's text."""
    spans = re.findall(r"(?<!`)`([^`\n]+)`", prose(page))
    return [span for span in spans if re.match(r"(make|posenc|python -m tests\.\S+)( |$)", span)]


def _is_whole(command: str) -> bool:
    if command.rstrip("\n").endswith("\\"):
        return False
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def table_rows(text: str) -> list[tuple[str, ...]]:
    """The rows of all tables in a text, heads among them, as cells without their padding."""
    rows = re.findall(r"^\|(.+)\|$", text, re.MULTILINE)
    cells = (tuple(cell.strip() for cell in row.split(" | ")) for row in rows)
    return [row for row in cells if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]


def tables(text: str) -> list[list[tuple[str, ...]]]:
    """The tables of a text, each as its rows."""
    return [table_rows(found) for found in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


def section(page: pathlib.Path, heading: str) -> str:
    """What stands below a heading of the second level, up to the next one."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"{name(page)} has no heading {heading!r}"
    return found[1]
