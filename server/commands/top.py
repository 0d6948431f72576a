"""``posenc top``: what runs at which scale, as a table that is drawn again and again."""

from __future__ import annotations

import contextlib
import dataclasses
import select
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.contract.errors import Failed
from server.app.figures import Counts, Figures, Histogram, figures
from server.client.client import NoAnswer, Server

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


class NoFigures(Failed):
    """The server counts nothing by scale."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a server counted at one time.

    Attributes:
        at: seconds on a steady clock.
    """

    at: float
    figures: Figures


def read(server: Server) -> Reading:
    """Ask a server for its figures.

    Raises:
        NoAnswer: when the server cannot be reached.
        BadAnswer: when it answers with an error.
        NoFigures: when it counts nothing by scale.
    """
    found = figures(sample for metric in server.metrics() for sample in metric.samples)
    if found is None:
        raise NoFigures(
            f"{server.address} counts nothing by scale: start it with a section posenc in --additional-config, and "
            "without disable_log_stats"
        )
    return Reading(time.monotonic(), found)


def show_once(server: Server, console: Console) -> None:
    """Print one table: counts since the server started, without colours and rates."""
    console.print(view(server.address, read(server), None))


def watch(server: Server, console: Console, seconds: float) -> None:
    """Draw the table until ``q`` or an interrupt.

    Args:
        seconds: from one reading to the next.

    Raises:
        NoAnswer: when the server cannot be reached at first; later it is waited for.
    """
    from rich.live import Live
    from rich.text import Text

    before, latest = None, read(server)
    with _keys() as key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(view(server.address, latest, before, ends="q ends"), refresh=True)
            if key(seconds) in ("q", "Q", "\x03", "\x04"):
                return
            try:
                before, latest = latest, read(server)
            except NoAnswer as error:
                live.update(Text(f"{error}\n\nwaiting for it; q ends"), refresh=True)
                if key(seconds) in ("q", "Q", "\x03", "\x04"):
                    return


def view(address: str, latest: Reading, before: Reading | None, ends: str = "") -> RenderableType:
    """The table by scale, with a line above it and the crossings below it.

    Args:
        before: the reading before, for rates; None for counts since the server started.
        ends: how the view is left.
    """
    from rich.console import Group
    from rich.text import Text

    now = latest.figures
    head = Text.assemble((address, "bold"), f"   {ends}" if ends else "")
    load = (
        f"{now.requests_running:,} running, {now.requests_waiting:,} waiting, {now.preemptions:,} preempted; "
        f"KV cache {now.kv_cache_usage:.1%}"
    )
    earlier = before.figures if before else None
    times = Text(
        f"first token {_times(now.first_token_seconds, earlier.first_token_seconds if earlier else None)}; "
        f"between tokens {_times(now.between_tokens_seconds, earlier.between_tokens_seconds if earlier else None)}"
    )
    crossed = [f"{each.source} to {each.target} {each.count:,}" for each in now.crossings if each.count]
    tail = Text(f"crossings: {', '.join(crossed) or 'none'}; {now.rerotated_tokens:,} tokens re-rotated")
    return Group(head, Text(load), times, _by_scale(latest, before), tail)


def _by_scale(latest: Reading, before: Reading | None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    unit = "" if before is None else "/s"
    headings = ("requests", f"requests{unit}", "KV blocks", f"prompt tokens{unit}", f"new tokens{unit}", "prefix hits")
    table.add_column("scale", justify="right", style="bold")
    shown = [index for index in range(len(headings)) if before is not None or index != 1]
    for index in shown:
        table.add_column(headings[index], justify="right")
    for scale, counts in latest.figures.by_scale.items():
        earlier = before.figures.by_scale.get(scale, Counts()) if before else Counts()
        seconds = latest.at - before.at if before else 1.0
        rates = [
            max(getattr(counts, name) - getattr(earlier, name), 0) / seconds
            for name in ("requests", "prompt_tokens", "generation_tokens")
        ]
        digits = 1 if before else 0
        share = f"{counts.prefix_hit_tokens / counts.prompt_tokens:.0%}" if counts.prompt_tokens else "-"
        cells = [
            f"{counts.requests:,}", f"{rates[0]:,.1f}", f"{counts.kv_blocks:,}",
            f"{rates[1]:,.{digits}f}", f"{rates[2]:,.{digits}f}", share,
        ]  # fmt: skip
        table.add_row(scale, *(cells[index] for index in shown))
    return table


def _times(now: Histogram, before: Histogram | None) -> str:
    """The median and the 95th percentile: since the reading before, if there were any, else since the start."""
    recent = now.since(before) if before else now
    found = recent if any(recent.counts) else now
    median, slow = found.quantile(0.5), found.quantile(0.95)
    return "none yet" if median is None or slow is None else f"p50 {_seconds(median)}, p95 {_seconds(slow)}"


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


@contextlib.contextmanager
def _keys() -> Iterator[_Key]:
    """Read single keys, without Enter; where the input is no terminal, only wait."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield _Key(is_terminal=False)
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _Key(is_terminal=True)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@dataclasses.dataclass(frozen=True)
class _Key:
    is_terminal: bool

    def __call__(self, seconds: float) -> str:
        """The key that was pressed within some seconds, or nothing."""
        if not self.is_terminal:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""
