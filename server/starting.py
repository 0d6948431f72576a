"""From settings to a server that runs, with what its start shows. Decision 58."""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from posenc_runtime.vllm_adapter.refusals import Failed, Refused
from server.causes import cause
from server.greeting import READY
from server.held_output import HeldOutput
from server.progress import Progress
from server.settings import Settings

if TYPE_CHECKING:
    from posenc_runtime.vllm_adapter.checkpoint import Checkpoint

_LAST_WORDS_SECONDS = 0.5  # that what an engine wrote last may take to get here


def serve(settings: Settings, read: Callable[[], Checkpoint | None], *, verbose: bool) -> NoReturn:
    """Serve until told to stop; then this process ends.

    Args:
        read: reads the checkpoint's configuration.
        verbose: show what vLLM writes while it starts, which is otherwise shown only where that fails.

    Raises:
        Refused: when something that was asked for is refused.
        Failed: when the engine does not start, or ends by itself.
    """
    # A copy of where this process writes to, before that is held.
    with os.fdopen(os.dup(1), "w") as stdout:
        terminal = Console(file=stdout, soft_wrap=True)
        if verbose:
            _run(settings, read, terminal, terminal.print, verbose=True)
        _run_quietly(settings, read, terminal)


def _run_quietly(settings: Settings, read: Callable[[], Checkpoint | None], terminal: Console) -> NoReturn:
    progress = Progress(terminal)
    held = HeldOutput(progress.heard)

    def shown(line: str) -> None:
        if line.startswith(READY):
            progress.end()
            held.release()
        terminal.print(line, markup=False, highlight=False)

    try:
        with progress:
            _run(settings, read, terminal, shown, verbose=False)
    except Refused:
        held.release()
        raise
    except Failed as error:
        time.sleep(_LAST_WORDS_SECONDS)
        said = held.release()
        if found := cause(said):
            raise type(error)(found) from None
        sys.stderr.write(said)
        raise
    except Exception:
        sys.stderr.write(held.release())
        raise
    except BaseException:
        held.release()
        raise


def _run(
    settings: Settings,
    read: Callable[[], Checkpoint | None],
    out: Console,
    show: Callable[[str], None],
    *,
    verbose: bool,
) -> NoReturn:
    # Imported here: vLLM writes while it is imported, too.
    from posenc_runtime.vllm_adapter import serving
    from server import plugin, report
    from server.planning import planned

    serving.prepare_environment(verbose=verbose)
    plan = planned(settings, read(), quiet=not verbose)
    serving.engine_configuration(plan.args)
    out.print(report.headline(settings, plan.deployment))
    if plan.reason:
        out.print(plan.reason)
    show_ours(show)  # only now: vLLM, when it is imported, disables the loggers that it finds
    serving.run(plan.args, plugin.ENDED, functools.partial(_stop_early, out))
    _leave(out, "stopped", 0)


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
