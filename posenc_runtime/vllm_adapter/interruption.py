"""What a signal does while an engine starts, which vLLM heeds only once it serves."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn


def end_at_signals(leave: Callable[[int], NoReturn]) -> None:
    """Have SIGINT and SIGTERM end this process at once, and its engine's with it, until vLLM takes the signals over.

    By themselves SIGTERM would leave the engine's processes behind, with the memory that they have taken, and SIGINT
    would be put off until the engine has started: vLLM waits for it without returning to the event loop.

    Args:
        leave: ends this process with an exit status: 128 and the signal's number, as shells have it.
    """
    from vllm.utils.system_utils import kill_process_tree

    def end(number: int, frame: FrameType | None) -> None:
        for process in multiprocessing.active_children():
            if process.pid is not None:
                kill_process_tree(process.pid)
        leave(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
