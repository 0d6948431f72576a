"""Shows an answer as it comes, and then at which scale it ran."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from server.client.client import Report, Server
from server.commands.reading_prompt import shown_progress

if TYPE_CHECKING:
    from rich.console import Console


def tell(pieces: Iterator[str | Report], console: Console, server: Server) -> str:
    """Print an answer and its report; gives the answer's text.

    Args:
        server: that gives the answer. Until the first piece comes, a terminal shows how far it has read the prompts.
    """
    text = []
    report = None
    with shown_progress(server, console):
        begun = list(itertools.islice(pieces, 1))
    for piece in itertools.chain(begun, pieces):
        if isinstance(piece, Report):
            report = piece
            continue
        text.append(piece)
        console.print(piece, end="", markup=False, highlight=False)
    console.print()
    for line in lines(report) if report else ():
        console.print(line, style="dim", highlight=False, markup=False)
    return "".join(text)


def lines(report: Report) -> Iterator[str]:
    """The report in words: a line for each crossing, then one for the scale and the tokens."""
    for crossing in report.crossings:
        yield (
            f"crossed from scale {crossing['from']:g} to {crossing['to']:g} at {crossing['at']:,} tokens "
            f"({crossing['how']})"
        )
    if report.tokens_past_trained is not None:
        past = report.tokens_past_trained
        scale = f"{report.rope_type}, {f'{past:,} tokens past' if past else 'within'} the trained length"
    else:
        scale = "no scale reported" if report.scale is None else f"scale {report.scale:g}"
    yield f"{scale}, {report.prompt_tokens + report.new_tokens:,} tokens, {report.new_tokens:,} of them new"
