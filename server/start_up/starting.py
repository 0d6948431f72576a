"""Starts a server from settings. A start shows, in this order: refusals or what is served, the engine's progress, the
address. Decision 58."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, NoReturn, cast

from rich.console import Console

from posenc_runtime.vllm_adapter.contract.errors import Failed
from posenc_runtime.vllm_adapter.in_server.request_log import LOGGER as REQUESTS
from server.app.greeting import READY
from server.deployment.checkpoint import refused_if_unreadable
from server.deployment.settings import Settings
from server.printing.progress import Progress
from server.start_up.causes import cause, first_error
from server.start_up.held_output import HeldOutput, checking
from server.start_up.json_lines import JsonLines

# Functions import modules that take long to import and write meanwhile, when output is held.
if TYPE_CHECKING:
    from posenc_runtime.vllm_adapter.serving import Configured
    from posenc_runtime.vllm_adapter.settings.plan import Plan

_LAST_WORDS_SECONDS = 0.5  # for the last output of an engine to get here


def serve(settings: Settings, place: str, *, verbose: bool) -> NoReturn:
    """Serve until told to stop; then this process ends.

    Args:
        place: the folder of the checkpoint, or its name.
        verbose: show what vLLM writes while it starts, which is otherwise shown only where that fails.

    Raises:
        Refused: when something that was asked for is refused.
        Failed: when the engine does not start, or ends by itself.
    """
    with checking(verbose=verbose):
        from server.start_up import room

        room.refuse_full_memory(settings)
        plan = plan_without_vllm(settings)
        taken = None if plan is None else room.take_free_memory(settings, plan, place)
        server = configure(settings, plan, verbose=verbose)
    # A copy of stdout, made before HeldOutput replaces it.
    with os.fdopen(os.dup(1), "w") as stdout:
        out = JsonLines(stdout) if settings.log_format == "json" else stdout
        terminal = Console(file=cast(IO[str], out), soft_wrap=True)
        _say_what_is_served(settings, server.plan, terminal)
        if taken:
            terminal.print(taken, highlight=False)
        run = functools.partial(_run, server, terminal)
        if verbose:
            run(functools.partial(_say, terminal))
        _run_quietly(run, terminal)


def plan_without_vllm(settings: Settings) -> Plan | None:
    """What is going to be served, after every check that needs no import of vLLM; None of a model in an object store.

    Raises:
        SettingRefused: when a setting or the checkpoint is refused.
    """
    from posenc_runtime.vllm_adapter.checkpoint.hub import is_in_object_store
    from server.start_up import planning, room

    if is_in_object_store(settings.engine.get("hf_config_path", settings.model)):
        return None
    plan = planning.plan_settings(settings)
    room.refuse_small_cache(settings, plan)
    return plan


def configure(settings: Settings, plan: Plan | None, *, verbose: bool = False) -> Configured:
    """What is going to be served, after every check that is possible before an engine starts.

    Args:
        plan: of the same settings.

    Raises:
        Refused: when a setting, the checkpoint or the configuration of the engine is refused.
    """
    from posenc_runtime.vllm_adapter import serving
    from server.start_up import planning

    args = planning.serve_namespace(settings, quiet=not verbose)
    args.api_server_count = 1  # of parallel engines, too: vLLM would start a server for each
    with refused_if_unreadable(settings):
        return serving.configure_server(args, plan)


def _say_what_is_served(settings: Settings, plan: Plan, terminal: Console) -> None:
    from server.printing import deployment_report

    terminal.print(deployment_report.headline(settings, plan.deployment, plan.checkpoint))
    for remark in plan.remarks:
        terminal.print(remark)


def _run_quietly(run: Callable[[Callable[[str], None]], NoReturn], terminal: Console) -> NoReturn:
    """Start the engine and serve; until it is ready, show its progress instead of its output."""
    progress = Progress(terminal)

    def show(line: str) -> None:
        if line.startswith(READY):
            progress.end()
            held.release()
            _log_into(held)
        _say(terminal, line)

    with HeldOutput(progress.heard) as held, _cause_of_failure(held), progress:
        run(show)


def _log_into(held: HeldOutput) -> None:
    """Have vLLM's log of this process take the way of its engine's output: its errors are as long."""
    for handler in logging.getLogger("vllm").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(held)


def _run(server: Configured, terminal: Console, show: Callable[[str], None]) -> NoReturn:
    """Start the engine and serve.

    Args:
        show: called with each line that our plugin logs.
    """
    from posenc_runtime.vllm_adapter import serving
    from server.app import plugin

    show_ours(show)  # only now: the import of vLLM disables the loggers that exist
    serving.run(server, plugin.ENDED, functools.partial(_stop_early, terminal))
    _leave(terminal, "stopped", 0)


@contextlib.contextmanager
def _cause_of_failure(held: HeldOutput) -> Iterator[None]:
    """Say in one line why an engine has failed, and where all that it wrote is, if we do not know the cause."""
    try:
        yield
    except Failed as error:
        time.sleep(_LAST_WORDS_SECONDS)
        said = held.release()
        if found := cause(said):
            raise type(error)(found) from None
        if not said:  # all that was written was shown
            raise
        reason = first_error(said) or "none of its processes said why; if memory ran out, the kernel's log says so"
        try:
            with tempfile.NamedTemporaryFile("w", prefix="posenc-", suffix=".log", delete=False) as log:
                log.write(said)
        except OSError:
            sys.stderr.write(said)
            raise
        raise type(error)(f"{error.what}: {reason} (all that it wrote is in {log.name})") from None


def _say(terminal: Console, line: str) -> None:
    terminal.print(line, markup=False, highlight=False)


def _stop_early(out: Console, number: int) -> NoReturn:
    _leave(out, "stopped before it was ready", 128 + number)


def show_ours(show: Callable[[str], None]) -> None:
    """Show the log lines of our plugin as they are, without the levels and file names of vLLM's log."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = record.getMessage()
            if record.name == REQUESTS and not line.startswith("{"):
                line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {line}"
            # A disk that is full, or a terminal that is gone, must not fail the request whose line this is.
            with contextlib.suppress(OSError):
                show(line)

    logger = logging.getLogger("vllm.posenc")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(Shown())


def _leave(out: Console, said: str, status: int) -> NoReturn:
    """End this process at once: Triton's bindings, which vLLM imports everywhere, report leaks by the page on exit."""
    with contextlib.suppress(OSError):  # a full disk does not make it a failure
        if out.is_terminal:
            out.print()  # after the ^C that the terminal shows
        out.print(said)
        out.file.flush()
    os._exit(status)
