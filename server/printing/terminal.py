"""The terminal: where commands print, and how a refusal or a failure ends them."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

# rich takes long to import, so that help appears at once without it.
if TYPE_CHECKING:
    from rich.console import Console


@functools.cache
def console(*, stderr: bool = False) -> Console:
    """Where commands print; the same one at each call."""
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=True)


def warn(what: str, why: str) -> None:
    """Print a line on stderr that begins with a word or two in colour."""
    from rich.markup import escape

    console(stderr=True).print(f"[bold yellow]{what}[/] {escape(why)}", highlight=False)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Print each refusal as one line on stderr and exit with status 2; a failure after the checks has status 1.

    An interrupt from the keyboard prints nothing and has the status that shells give it.

    Raises:
        typer.Exit: with that status.
    """
    from posenc_runtime.vllm_adapter.contract.errors import Failed, Refused
    from posenc_runtime.vllm_adapter.releases import IncompatibleVllm

    try:
        yield
    except Refused as error:
        raise _ended("refused", str(error), error.status) from None
    except IncompatibleVllm as error:
        raise _ended("refused", str(error), 2) from None
    except Failed as error:
        raise _ended("failed", str(error), 1) from None
    except OSError as error:
        if error.errno is None or not error.strerror:
            raise
        raise _ended("refused", error.strerror, 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None


def _ended(how: str, reasons: str, status: int) -> typer.Exit:
    from rich.markup import escape

    for line in reasons.splitlines():
        console(stderr=True).print(f"[bold red]{how}[/] {escape(line)}", highlight=False)
    return typer.Exit(status)
