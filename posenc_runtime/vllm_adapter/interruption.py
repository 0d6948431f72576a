"""What a signal does while an engine starts, which vLLM heeds only once it serves."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn


def end_at_signals(leave: Callable[[int], NoReturn]) -> None:
    """Have SIGINT and SIGTERM end this process at once, and its engine's with it, until vLLM takes the signals over.

    vLLM's own handlers raise, and put SIGINT off until it returns to the event loop. While it waits for its engine it
    does not return there, and what a handler raises is lost in the call of ZeroMQ that waits (pyzmq 27).

    Args:
        leave: ends this process, because of the signal of this number.
    """
    from vllm.utils.system_utils import kill_process_tree

    def end(number: int, frame: FrameType | None) -> None:
        for process in multiprocessing.active_children():
            if process.pid is not None:
                kill_process_tree(process.pid)
        leave(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
