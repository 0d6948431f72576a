"""Shows an answer as it comes, and then at which scale it ran."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from server.client.client import Report, Server
from server.commands.reading_prompt import shown_progress

if TYPE_CHECKING:
    from rich.console import Console


class Told(NamedTuple):
    """An answer that was shown: its text, and whether the keyboard stopped it there."""

    text: str
    is_stopped: bool = False


def tell(
    pieces: Iterator[str | Report],
    console: Console,
    server: Server,
    *,
    max_tokens: int | None = None,
    may_stop: bool = False,
) -> Told:
    """Print an answer and its report.

    Args:
        server: that gives the answer. Until the first piece comes, a terminal shows how far it has read the prompts.
        max_tokens: that an option of the command sets.
        may_stop: whether an interrupt from the keyboard ends the answer alone.
    """
    text: list[str] = []
    report = None
    try:
        with shown_progress(server, console):
            begun = list(itertools.islice(pieces, 1))
        for piece in itertools.chain(begun, pieces):
            if isinstance(piece, Report):
                report = piece
                continue
            text.append(piece)
            console.print(piece, end="", markup=False, highlight=False)
    except KeyboardInterrupt:
        if not may_stop:
            raise
        cast(Generator[str | Report], pieces).close()  # closes the connection, which stops the server
        console.print()
        return Told("".join(text), is_stopped=True)
    console.print()
    for line in lines(report, max_tokens) if report else ():
        console.print(line, style="dim", highlight=False, markup=False)
    return Told("".join(text))


def lines(report: Report, max_tokens: int | None = None) -> Iterator[str]:
    """The report in words: where the answer was cut, a line for each crossing, one for scale and tokens, and the speed.

    Args:
        max_tokens: that an option of the command sets.
    """
    if report.finish_reason == "length" and max_tokens is not None:  # otherwise the command has chosen the length
        asked = report.new_tokens == max_tokens
        yield f"cut at {report.new_tokens:,} tokens ({'--max-tokens' if asked else 'the longest request is reached'})"
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
    if report.new_tokens > 1:
        speed = (report.new_tokens - 1) / max(report.seconds - report.first_seconds, 1e-6)
        yield f"first token after {report.first_seconds:.2f} s, then {speed:.1f} tokens/s"
