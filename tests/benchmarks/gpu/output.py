"""What the two GPU benchmarks say on the console, and where their results go."""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import tempfile
from collections.abc import Iterator, Sequence

import typer
from rich.console import Console

from tests.benchmarks.gpu import device

RESULTS = pathlib.Path("tests/benchmarks/results")
_CONSOLE = Console(soft_wrap=True)


def refuse_unknown(only: Sequence[str], known: Sequence[str]) -> None:
    """
    Raises:
        typer.BadParameter: naming those of ``only`` that are not known.
    """
    if unknown := sorted(set(only) - set(known)):
        raise typer.BadParameter(f"--only must be one of {', '.join(known)}, got {', '.join(unknown)}")


@contextlib.contextmanager
def place(out: pathlib.Path | None, subject: str, *, is_rehearsal: bool) -> Iterator[pathlib.Path]:
    """Where the result goes; that of a rehearsal nowhere for long, if nobody asks for it."""
    if out is not None:
        yield out
    elif is_rehearsal:
        with tempfile.TemporaryDirectory(prefix="posenc-rehearsal-") as folder:
            yield pathlib.Path(folder) / "rehearsal"
    else:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        yield RESULTS / f"{today}-{device.short_name()}-{subject}"


def say(paragraphs: Sequence[str]) -> None:
    for paragraph in paragraphs:
        tell(f"{paragraph}\n")


def tell(line: str) -> None:
    _CONSOLE.print(line, highlight=False, markup=False)
