"""The command ``posenc``: serve a model or a deployment, or check what a configuration file would do."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from server.commands import evaluation, options, plotting, talking
from server.commands.options import Config, Overrides, Target, WithVllmsFlags
from server.printing.terminal import console as _console
from server.printing.terminal import refusals as _refusals
from server.start_up.reading import look_at_checkpoint, plan_read, plan_unread, read_settings

if TYPE_CHECKING:
    from posenc_runtime.vllm_adapter.settings.plan import Plan
    from server.deployment.settings import Settings

# The commands themselves import what takes long to import, rich too, so that help and errors appear at once.

app = typer.Typer(
    name="posenc",
    help="Serve long-context completions, every request at its own rotary scale.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from server.printing.version import version_line

        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions of Posenc and vLLM.")
    ] = False,
) -> None:
    """Serve long-context completions, every request at its own rotary scale."""


@app.command(cls=WithVllmsFlags)
def serve(
    target: Target = None,
    config: Config = None,
    host: Annotated[str | None, typer.Option("--host", help="Short for --set server.host=HOST.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Short for --set server.port=PORT.")] = None,
    overrides: Overrides = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show vLLM's own log.")] = False,
) -> None:
    """Serve a model or a deployment over HTTP until interrupted.

    If you name only a model, its own configuration decides how it is scaled, and the memory for the KV cache decides
    how long requests may be.
    Flags of vllm serve are taken as vLLM spells them: --max-num-seqs 4 --enable-auto-tool-choice.
    """
    given = [f"server.{name}={value}" for name, value in (("host", host), ("port", port)) if value is not None]
    with _refusals():
        settings = read_settings(target, config, [*(overrides or []), *given])
        from server.start_up import address, starting

        address.refuse_taken(settings)
        found = look_at_checkpoint(settings, has_weights=True)

        starting.serve(settings, found.place, verbose=verbose)


@app.command(cls=WithVllmsFlags, short_help="Check a deployment, and print at which scales requests would run.")
def check(
    target: Target = None,
    config: Config = None,
    overrides: Overrides = None,
    tokens: Annotated[
        list[int] | None,
        typer.Option(
            "--tokens",
            metavar="N",
            min=1,
            help="Print what a request of N tokens gets, prompt and answer together. May be repeated.",
        ),
    ] = None,
) -> None:
    """Check a deployment as serve does before it starts; print its scales, the memory of the rotary table, and the
    scale of requests by length.

    Without a GPU, settings that need one are refused.
    check also builds vLLM's configuration. For a model that is new to this machine, this takes longer.
    If a hub does not give the model's configuration, but the file names the trained length, check goes on without the
    model's configuration, and says so on stderr.
    Only serve loads the weights, measures memory and opens the port.
    """
    with _refusals():
        settings = read_settings(target, config, overrides)
        plan, block_size = _checked(settings)
        from server.printing import deployment_report

        checkpoint = plan.checkpoint
        _console().print(deployment_report.headline(settings, plan.deployment, checkpoint))
        for remark in plan.remarks:
            _console().print(remark)
        _console().print(deployment_report.attention_line(plan.attention, plan.deployment))
        dtype = settings.engine.get("dtype", "auto")
        if plan.deployment.turns_queries:
            _console().print(deployment_report.distances_line(plan.deployment, block_size), highlight=False)
            _console().print(deployment_report.table_memory(plan.deployment, checkpoint, dtype, plan.attention))
        elif plan.deployment.rotates:
            if checkpoint is not None and checkpoint.verdict is not None:
                _console().print(deployment_report.crossings_line(checkpoint.verdict), highlight=False)
            _console().print(deployment_report.scales_table(plan.deployment, checkpoint))
            _console().print(deployment_report.table_memory(plan.deployment, checkpoint, dtype, plan.attention))
        lengths = tokens or deployment_report.telling_lengths(plan.deployment)
        _console().print(deployment_report.requests_table(plan.deployment, lengths))


def _checked(settings: Settings) -> tuple[Plan, int | None]:
    """What would be served, after all checks that serve makes before it starts an engine; and the KV cache's block.

    The block is in tokens, and None where vLLM has not chosen it.
    """
    from server.deployment.checkpoint import UnreadableModel
    from server.start_up.held_output import checking

    try:
        found = look_at_checkpoint(settings)
        with checking():
            from posenc_runtime.vllm_adapter.checkpoint.hub import is_in_object_store
            from server.start_up import planning, starting

            if is_in_object_store(found.place):  # vLLM would fetch the weights for its configuration
                return planning.plan_settings(settings), settings.engine.get("block_size")
            configured = starting.configure(settings, starting.plan_without_vllm(settings))
            return configured.plan, configured.vllm_config.cache_config.block_size
    except UnreadableModel as error:
        return plan_unread(settings, error), settings.engine.get("block_size")


@app.command(cls=WithVllmsFlags, short_help="Print the command with which plain vLLM runs a deployment.")
def flags(target: Target = None, config: Config = None, overrides: Overrides = None) -> None:
    """Print the command with which plain vLLM runs a deployment.

    Posenc must be installed beside that vLLM. The command has every flag that follows from the deployment.
    """
    with _refusals():
        settings = read_settings(target, config, overrides)
        plan_read(settings)
        from server.start_up.held_output import checking

        with checking():
            from server.start_up import planning

            command = planning.command(settings)
        _console().print(shlex.join(command), markup=False, highlight=False)


@app.command(
    cls=WithVllmsFlags,
    short_help="Compute how many requests of a length fit on GPUs, from the model's configuration.",
)
def size(
    target: Target = None,
    config: Config = None,
    overrides: Overrides = None,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="NAME", help="A GPU's name, or its memory, for example 96GiB.")
    ] = "h200",
    context: Annotated[
        int | None,
        typer.Option("--context", min=1, help="Tokens of a request, prompt and answer; the deployment's longest."),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests that are to run at once.")] = 1,
    weights: Annotated[
        str | None, typer.Option("--weights", metavar="SIZE", help="Memory of the weights, for example 140GB.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute what the KV cache of a request takes, how many requests fit on GPUs, and how many replicas they need.

    No engine is started, and no GPU is needed: all follows from the model's configuration. The weights are measured
    where their files are in the model's folder, and estimated otherwise.
    """
    with _refusals():
        settings = read_settings(target, config, overrides)
        from server.deployment import gpus

        gpu_bytes = gpus.memory_of(gpu)
        look_at_checkpoint(settings)
        from server.start_up.held_output import checking

        with checking():
            from server.sizing import fit, size_report

            found = fit.compute_fit(
                settings,
                gpu=gpu,
                gpu_bytes=gpu_bytes,
                context=context,
                concurrency=concurrency,
                weights=weights,
            )
        name = settings.served_model_name or settings.model
        if as_json:
            typer.echo(size_report.as_json(name, found))
            return
        for each in size_report.lines(name, found):
            _console().print(each, highlight=False)


@app.command(short_help="List the deployments that come with Posenc.")
def configs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Print only the path of this deployment.",
            autocompletion=options.configurations,
        ),
    ] = None,
) -> None:
    """List the deployments that come with Posenc, or print the path of one.

    posenc serve --config "$(posenc configs demo)"
    """
    with _refusals():
        from server.deployment import shipped
        from server.printing import deployment_report

        if name is not None:
            _console().print(str(shipped.path_of(name)), markup=False, highlight=False)
            return
        for each in shipped.names():
            _console().print(deployment_report.deployment_lines(each, shipped.about(each)), highlight=False)


app.add_typer(talking.app)
app.add_typer(evaluation.app, name="eval")
app.add_typer(plotting.app, name="plot")
