"""Shows how far a server has read the prompts while somebody waits for the first token of an answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.contract.errors import Failed
from server.app.figures import figures

if TYPE_CHECKING:
    from rich.console import Console

    from server.client.client import Server

_SECONDS_BETWEEN_READINGS = 1.0


@contextlib.contextmanager
def shown_progress(server: Server, console: Console) -> Iterator[None]:
    """On a terminal, show a line until the block is left. Short prompts are read before it appears.

    A server counts the prompts of all its requests together, so the line does, too.
    """
    if not console.is_terminal:
        yield
        return
    has_answered = threading.Event()
    with console.status("", spinner="dots") as status:

        def read() -> None:
            while not has_answered.wait(_SECONDS_BETWEEN_READINGS):
                # The answer itself tells what is wrong with the server.
                with contextlib.suppress(Failed):
                    status.update(progress_line(server))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield
        finally:
            has_answered.set()
            reader.join()


def progress_line(server: Server) -> str:
    """How many tokens of the prompts are read; empty where none waits to be read.

    Raises:
        NoAnswer: when the server cannot be reached.
        BadAnswer: when it answers with an error.
    """
    counted = figures(sample for metric in server.metrics() for sample in metric.samples)
    if counted is None or not counted.prefill_tokens.waiting:
        return ""
    read, left = counted.prefill_tokens.computed, counted.prefill_tokens.waiting
    return f"reading prompts: {read:,} of {read + left:,} tokens"
