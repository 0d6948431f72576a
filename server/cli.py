"""The command ``posenc``: serve a deployment, or check what a configuration file would do."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shlex
import signal
from collections.abc import Iterator
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from posenc_runtime.vllm_adapter import serving
from posenc_runtime.vllm_adapter.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.compat import IncompatibleVllm
from posenc_runtime.vllm_adapter.engine_args import command_line, serve_arguments
from posenc_runtime.vllm_adapter.flags import ArgumentRefused
from posenc_runtime.vllm_adapter.support import Unsupported
from server import report, shipped
from server.deployment import UnreadableModel, attention_of, checkpoint_of, deployment_of, world_size_of
from server.load import ConfigurationError, load
from server.settings import Settings

app = typer.Typer(
    name="posenc",
    help="Serve long-context completions, every request at its own rotary scale.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_out = Console(soft_wrap=True)
_err = Console(stderr=True, soft_wrap=True)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a setting: --set scaling.headroom_tokens=64."),
]
File = Annotated[pathlib.Path, typer.Argument(metavar="FILE", help="A deployment's YAML file.")]


@app.command()
def serve(
    config: Annotated[pathlib.Path, typer.Option("--config", metavar="FILE", help="A deployment's YAML file.")],
    overrides: Overrides = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show vLLM's own log.")] = False,
) -> None:
    """Serve a deployment over HTTP until interrupted."""
    with _refusals():
        settings = load(config, overrides)
        engine = settings.engine
        serving.prepare_environment(verbose=verbose, world_size=world_size_of(settings))
        # An object store's is read by vLLM itself, with the weights.
        checkpoint = _checkpoint(settings, is_needed="://" not in settings.model)
        deployment = deployment_of(settings, checkpoint)
        http = settings.server.arguments
        if not verbose:
            http.setdefault("uvicorn_log_level", "warning")
            engine = {"use_tqdm_on_load": False} | engine
        args = serve_arguments(
            model=settings.model,
            served_model_name=settings.served_model_name,
            deployment=deployment,
            attention=attention_of(settings, checkpoint),
            engine=engine,
            http=http,
        )
        _out.print(report.headline(settings, deployment))
        _out.print("starting the engine; this takes half a minute on a small machine")
        # Only now: vLLM's own event loop, and the server, which needs it.
        import uvloop

        from posenc_runtime.vllm_adapter.interruption import end_at_signals
        from server.app import run

        end_at_signals(functools.partial(_leave, "stopped before it was ready"))
        uvloop.run(run(args, deployment, _out.print))
        _leave("stopped", 0)


@app.command()
def check(
    file: File,
    overrides: Overrides = None,
    tokens: Annotated[
        list[int] | None,
        typer.Option(
            "--tokens", metavar="N", min=1, help="Show what a request of N tokens, answer included, would get."
        ),
    ] = None,
) -> None:
    """Validate a file as serve does before it starts; print its scales, their lengths, the table's memory, and what
    requests would get.

    Refusals are this machine's: without a GPU, what needs one is refused.
    vLLM's configuration is made, too: seconds for a model that is new here.
    A model that a hub does not give is left out where the file says its trained length, and stderr says so.
    Weights, memory and the address to listen on are seen by serve alone.
    """
    with _refusals():
        settings = load(file, overrides)
        serving.prepare_environment(verbose=False, world_size=world_size_of(settings))
        checkpoint = _checkpoint(settings, is_needed=False)
        deployment = deployment_of(settings, checkpoint)
        attention = attention_of(settings, checkpoint)
        args = serve_arguments(
            model=settings.model,
            served_model_name=settings.served_model_name,
            deployment=deployment,
            attention=attention,
            engine=settings.engine,
            http=settings.server.arguments,
        )
        if checkpoint is not None:
            serving.engine_configuration(args)
        _out.print(report.headline(settings, deployment))
        _out.print(report.attention_line(attention))
        if deployment.rotates:
            _out.print(report.scales_table(deployment, checkpoint))
            dtype = settings.engine.get("dtype", "auto")
            _out.print(report.table_memory(deployment, checkpoint, dtype, attention))
        _out.print(report.requests_table(deployment, tokens or report.telling_lengths(deployment)))


@app.command()
def flags(file: File, overrides: Overrides = None) -> None:
    """Print the command with which plain vLLM, with the plugin installed, runs a deployment."""
    with _refusals():
        settings = load(file, overrides)
        serving.prepare_environment(verbose=False, world_size=world_size_of(settings))
        checkpoint = _checkpoint(settings, is_needed=False)
        deployment = deployment_of(settings, checkpoint)
        words = command_line(
            settings.model,
            deployment,
            settings.engine,
            attention_of(settings, checkpoint),
            served_model_name=settings.served_model_name,
            http=settings.server.arguments,
        )
        _out.print(shlex.join(words), markup=False, highlight=False)


@app.command()
def configs(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print the path of this one alone.")] = None,
) -> None:
    """List the deployments that come with Posenc, or print the path of one.

    posenc serve --config "$(posenc configs demo)"
    """
    with _refusals():
        if name is not None:
            _out.print(str(shipped.path_of(name)), markup=False, highlight=False)
            return
        for each in shipped.names():
            _out.print(report.deployment_lines(each, shipped.about(each)), highlight=False)


def _checkpoint(settings: Settings, *, is_needed: bool) -> Checkpoint | None:
    """The checkpoint's configuration; None, said on stderr, where it cannot be read and the settings say enough.

    Raises:
        ConfigurationError: when it cannot be read and is needed, or cannot be scaled.
    """
    try:
        return checkpoint_of(settings)
    except UnreadableModel as error:
        if is_needed or settings.scaling.original_max_position_embeddings is None:
            raise
        _err.print(f"[bold yellow]not read[/] {escape(str(error))}; this is from the settings alone", highlight=False)
        return None


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn refusals into one line each on stderr, and exit status 2; what fails later has status 1.

    An interrupt from the keyboard has a shell's status for it, and says nothing.

    Raises:
        typer.Exit: with that status.
    """
    try:
        yield
    except (ConfigurationError, ArgumentRefused, IncompatibleVllm, Unsupported) as error:
        raise _ended("refused", str(error), 2) from None
    except serving.CannotListen as error:
        raise _ended("refused", str(error), 1) from None
    except (serving.EngineDidNotStart, serving.EngineDied) as error:
        raise _ended("failed", str(error), 1) from None
    except OSError as error:
        if error.errno is None or not error.strerror:
            raise
        raise _ended("refused", error.strerror, 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None


def _leave(said: str, status: int) -> NoReturn:
    """End this process at once: Triton's bindings, which vLLM imports everywhere, report leaks by the page on exit."""
    _out.print(said)
    _out.file.flush()
    os._exit(status)


def _ended(how: str, reasons: str, status: int) -> typer.Exit:
    for line in reasons.splitlines():
        _err.print(f"[bold red]{how}[/] {escape(line)}", highlight=False)
    return typer.Exit(status)
