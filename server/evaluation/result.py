"""The result of an evaluation: its tables and remarks, shown or written, and how it was made."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from server.printing.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


_KEY = "--api-key"


def describe_run(arguments: Sequence[str]) -> dict[str, str]:
    """For a report: the date, and the command without an API key.

    Args:
        arguments: of ``posenc``.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["posenc", *_without_key(arguments)]),
    }


def _without_key(arguments: Sequence[str]) -> Iterator[str]:
    rest = iter(arguments)
    for argument in rest:
        if argument == _KEY:
            next(rest, None)
        elif not argument.startswith(f"{_KEY}="):
            yield argument


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture to be drawn.

    Attributes:
        name: of its file, without the ending.
        draw: gives the figure; it imports matplotlib.
    """

    name: str
    title: str
    draw: Callable[[], Figure]


@dataclasses.dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        results: the numbers behind the tables, as JSON.
        remarks: sentences below the tables.
    """

    results: Mapping[str, Any]
    tables: Sequence[Table]
    pictures: Sequence[Picture] = ()
    remarks: Sequence[str] = ()


def write(folder: pathlib.Path, report: Report, about: Mapping[str, Any]) -> list[pathlib.Path]:
    """Write ``results.json``, ``report.md`` and a PNG for each picture.

    Without matplotlib there are no pictures, and the report says so.

    Args:
        about: what was measured, with which options, by which version.
    """
    from server.plots.style import is_available, save

    files = [folder / "results.json", folder / "report.md"]
    pictures = []
    if is_available():
        for picture in report.pictures:
            path = folder / f"{picture.name}.png"
            save(picture.draw(), path)
            pictures.append(f"![{picture.title}]({path.name})")
            files.append(path)
    elif report.pictures:
        pictures.append("No pictures: matplotlib is not installed (`pip install 'posenc[eval]'`).")
    _replace(files[0], json.dumps({**about, **report.results}, indent=1) + "\n")
    described = "\n".join(f"- {name}: {_shown(value)}" for name, value in about.items())
    parts = [f"# posenc eval {about['task']}", described, *map(_written, report.tables)]
    _replace(files[1], "\n\n".join([*parts, *pictures, *report.remarks]) + "\n")
    return files


def _written(table: Table) -> str:
    return "\n\n".join(part for part in (table.title, table.as_markdown(), table.note) if part)


def _replace(path: pathlib.Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def show(report: Report, console: Console) -> None:
    """Print the tables, and the remarks below them."""
    for table in report.tables:
        console.print(table.for_terminal())
    for remark in report.remarks:
        console.print(remark, highlight=False, markup=False)
