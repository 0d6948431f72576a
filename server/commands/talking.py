"""The commands of the command line that talk to a running server."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from server.commands import options
from server.printing.terminal import console, refusals

# The commands themselves import what takes long to import, so that help and errors appear at once.

app = typer.Typer(rich_markup_mode=None)

Url = Annotated[str, typer.Option("--url", metavar="URL", help="The server's address.", show_default=True)]
Key = Annotated[
    str | None,
    typer.Option("--api-key", metavar="KEY", envvar="OPENAI_API_KEY", help="The server's key.", show_default=False),
]


@app.command(short_help="Talk to a model, and see the scale of each answer.")
def chat(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL | CONFIGURATION]",
            help="What to start a server with; without it, chat talks to the server at --url.",
            autocompletion=options.targets,
        ),
    ] = None,
    url: Url = "http://127.0.0.1:8000",
    key: Key = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most new tokens of an answer.")] = 256,
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="A message before all others.")] = "",
    completions: Annotated[
        bool, typer.Option("--completions", help="Let the model complete the text, without its chat template.")
    ] = False,
) -> None:
    """Talk to a model, and see the scale of each answer and its crossings.

    Reads lines from the terminal or from a pipe. /load FILE puts a file before the next message, /new begins anew,
    /quit ends. Ctrl-C stops an answer, and twice the chat.
    """
    with refusals():
        from server.client.client import Server
        from server.client.started_server import start_server
        from server.commands.chat import Conversation, converse

        out = console()
        serving = contextlib.nullcontext(url) if target is None else start_server([target], out)
        with serving as address, Server(address, key) as server:
            conversation = Conversation(
                server,
                out,
                max_tokens=max_tokens,
                is_chat=not completions,
                system=system,
                may_stop=sys.stdin.isatty(),
            )
            converse(conversation, out)


@app.command(short_help="See in a minute what Posenc does, with the demo model.")
def demo(
    rope_type: Annotated[
        str,
        typer.Option("--rope-type", metavar="METHOD", help="Another method, such as rerope.", show_default=True),
    ] = "yarn",
) -> None:
    """Start the demo model, send a short request, a long one and one that grows, show the metrics, and end."""
    with refusals():
        from server.client.client import Server
        from server.client.started_server import start_server
        from server.commands.demo import show

        out = console()
        with (
            start_server(["demo", "--set", f"scaling.rope_type={rope_type}"], out) as address,
            Server(address) as server,
        ):
            show(server, out)


@app.command(short_help="Watch what runs at which scale.")
def top(
    url: Url = "http://127.0.0.1:8000",
    key: Key = None,
    once: Annotated[bool, typer.Option("--once", help="Print the counts once, and end.")] = False,
    seconds: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="From one reading to the next.")
    ] = 1.0,
) -> None:
    """Watch what runs at which scale, on any server with Posenc: posenc serve, or vLLM with its flag. q ends.

    It reads /metrics.
    """
    with refusals():
        from server.client.client import Server
        from server.commands.top import show_once, watch

        with Server(url, key) as server:
            if once:
                show_once(server, console())
            else:
                watch(server, console(), seconds)
