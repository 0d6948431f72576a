"""From settings to a server that runs, in the order in which a start shows it: what is refused, what is served, how far
the engine is, and where it is. Decision 58."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from posenc_runtime.vllm_adapter.errors import Failed
from server.causes import cause
from server.checking import checking
from server.greeting import READY
from server.held_output import HeldOutput
from server.progress import Progress
from server.settings import Settings

# What takes long to import, and writes while it is imported, is imported when output is held.
if TYPE_CHECKING:
    from posenc_runtime.vllm_adapter.checkpoints.checkpoint import Checkpoint
    from server.planning import Plan

_LAST_WORDS_SECONDS = 0.5  # that what an engine wrote last may take to get here


def serve(settings: Settings, checkpoint: Checkpoint | None, *, verbose: bool) -> NoReturn:
    """Serve until told to stop; then this process ends.

    Args:
        checkpoint: None where vLLM alone can read it.
        verbose: show what vLLM writes while it starts, which is otherwise shown only where that fails.

    Raises:
        Refused: when something that was asked for is refused.
        Failed: when the engine does not start, or ends by itself.
    """
    with checking(verbose=verbose):
        plan, args = _checked(settings, checkpoint, verbose=verbose)
    # A copy of where this process writes to, before that is held.
    with os.fdopen(os.dup(1), "w") as stdout:
        terminal = Console(file=stdout, soft_wrap=True)
        _say_what_is_served(settings, plan, terminal)
        if verbose:
            _run(args, terminal, functools.partial(_say, terminal))
        _run_quietly(args, terminal)


def _checked(settings: Settings, checkpoint: Checkpoint | None, *, verbose: bool) -> tuple[Plan, argparse.Namespace]:
    """What is going to be served, and vLLM's arguments, after all that can be refused before an engine starts."""
    from posenc_runtime.vllm_adapter import serving
    from server.planning import planned

    plan = planned(settings, checkpoint)
    args = plan.arguments(quiet=not verbose)
    serving.engine_configuration(args)
    return plan, args


def _say_what_is_served(settings: Settings, plan: Plan, terminal: Console) -> None:
    from server import report

    terminal.print(report.headline(settings, plan.deployment))
    if plan.reason:
        terminal.print(plan.reason)


def _run_quietly(args: argparse.Namespace, terminal: Console) -> NoReturn:
    """Show how far the engine is, until it is ready, in place of what it writes."""
    progress = Progress(terminal)

    def show(line: str) -> None:
        if line.startswith(READY):
            progress.end()
            held.release()
        _say(terminal, line)

    with HeldOutput(progress.heard) as held, _cause_of_failure(held), progress:
        _run(args, terminal, show)


def _run(args: argparse.Namespace, terminal: Console, show: Callable[[str], None]) -> NoReturn:
    """Start the engine and serve.

    Args:
        show: gets each line that our plugin says.
    """
    from posenc_runtime.vllm_adapter import serving
    from server import plugin

    show_ours(show)  # only now: vLLM, when it is imported, disables the loggers that it finds
    serving.run(args, plugin.ENDED, functools.partial(_stop_early, terminal))
    _leave(terminal, "stopped", 0)


@contextlib.contextmanager
def _cause_of_failure(held: HeldOutput) -> Iterator[None]:
    """Say why an engine has failed: in a line where the cause is one that we know, otherwise by all that it wrote."""
    try:
        yield
    except Failed as error:
        time.sleep(_LAST_WORDS_SECONDS)
        said = held.release()
        if found := cause(said):
            raise type(error)(found) from None
        sys.stderr.write(said)
        raise


def _say(terminal: Console, line: str) -> None:
    terminal.print(line, markup=False, highlight=False)


def _stop_early(out: Console, number: int) -> NoReturn:
    _leave(out, "stopped before it was ready", 128 + number)


def show_ours(show: Callable[[str], None]) -> None:
    """Have what our plugin says of the start, and of requests, shown as it is; vLLM's own log has levels and files."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(record.getMessage())

    logger = logging.getLogger("vllm.posenc")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(Shown())


def _leave(out: Console, said: str, status: int) -> NoReturn:
    """End this process at once: Triton's bindings, which vLLM imports everywhere, report leaks by the page on exit."""
    out.print(said)
    out.file.flush()
    os._exit(status)
