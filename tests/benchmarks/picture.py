"""The README's picture, a long and a short request side by side: ``python -m tests.benchmarks.picture``."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Annotated

import typer
from rich.console import Console

from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from posenc_runtime.zoo.passkey import make_sample
from server.deployment.load import load
from server.deployment.settings import Settings
from server.printing.tables import Table
from tests.benchmarks.accuracy import CONFIG
from tests.benchmarks.drawing import draw
from tests.benchmarks.progress import progress_bar
from tests.benchmarks.recording import Recording, Request, record
from tests.benchmarks.servers import ServerFailed, running
from tests.benchmarks.variants import Checkpoint, Variant, command, served_length, served_name

_SEED = 8_000_000
_METHODS = {"yarn": "YaRN", "ntk": "NTK", "dynamic": "dynamic NTK"}
_console = Console(soft_wrap=True)


def main(
    config: Annotated[
        pathlib.Path, typer.Option(help="A deployment's YAML file.", show_default="configs/demo.yaml")
    ] = CONFIG,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a setting.")
    ] = None,
    long_prompt: Annotated[int, typer.Option(min=64, help="Prompt tokens of the long request.")] = 3200,
    long_answer: Annotated[int, typer.Option(min=2, help="Tokens that the long request generates.")] = 500,
    short_prompt: Annotated[int, typer.Option(min=64, help="Prompt tokens of the short request.")] = 200,
    short_answer: Annotated[int, typer.Option(min=2, help="Tokens that the short request generates.")] = 200,
    short_after: Annotated[
        float, typer.Option(min=0, help="Seconds from the long request's first token to the short request.")
    ] = 0.5,
    out: Annotated[
        pathlib.Path, typer.Option(help="Where the PNG goes.", show_default="docs/pictures/side_by_side.png")
    ] = CONFIG.parents[1] / "docs" / "pictures" / "side_by_side.png",
) -> None:
    """Draw a long and a short request that run at the same time, each at its own scale, and the KV blocks they hold."""
    try:
        settings = load(config, overrides)
    except SettingRefused as error:
        raise typer.BadParameter(str(error)) from None
    checkpoint = Checkpoint.of(settings)
    served = command(
        Variant("picture", sets=()), config, overrides or [], settings, served_length(settings, checkpoint)
    )
    long = _request("long request", settings, long_prompt, long_answer)
    short = _request("short request", settings, short_prompt, short_answer)
    with progress_bar(_console) as bar:
        task = bar.add_task("starting the server", total=long_answer + short_answer)
        try:
            with running(served) as address:
                bar.reset(task, description="recording")
                recording = asyncio.run(
                    record(
                        address,
                        served_name(settings),
                        long,
                        short,
                        short_after=short_after,
                        advance=lambda: bar.advance(task),
                    )
                )
                # a busy server puts several tokens into one piece of its stream
                bar.update(task, completed=long_answer + short_answer)
        except ServerFailed as error:
            bar.stop()
            _console.print(f"[bold red]failed[/] {error}", highlight=False)
            raise typer.Exit(1) from None
    method = _METHODS.get(settings.scaling.rope_type, settings.scaling.rope_type)
    draw(recording, out, title=f"Two requests in one batch, each at its own {method} scale")
    _console.print(summary(recording).for_terminal())
    if short.sent >= long.tokens[-1]:
        _console.print("[yellow]the requests did not overlap:[/] give --long-answer more tokens")
    _console.print(f"wrote {out}", highlight=False)


def summary(recording: Recording) -> Table:
    """What the picture shows, in numbers."""
    return Table(
        title="Recorded",
        headings=("request", "tokens", "scale", "sent, s", "first token, s", "last token, s"),
        rows=tuple(
            (
                request.name,
                f"{request.prompt_tokens} + {request.new_tokens}",
                "none" if request.scale is None else f"{request.scale:g}",
                f"{request.sent:.2f}",
                f"{request.tokens[0]:.2f}",
                f"{request.tokens[-1]:.2f}",
            )
            for request in (recording.long, recording.short)
        ),
    )


def _request(name: str, settings: Settings, prompt_tokens: int, new_tokens: int) -> Request:
    from transformers import AutoTokenizer

    sample = make_sample(AutoTokenizer.from_pretrained(settings.model), prompt_tokens, _SEED)
    # prompt and answer of the sample, both as the prompt: its length is then exact, whatever the answer takes
    return Request(name, sample.prompt + sample.answer, prompt_tokens, new_tokens)


if __name__ == "__main__":
    typer.run(main)
