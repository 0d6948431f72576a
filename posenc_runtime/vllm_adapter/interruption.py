"""Ends the process at a signal while an engine starts; vLLM itself heeds signals only once it serves."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn


def end_at_signals(leave: Callable[[int], NoReturn]) -> None:
    """Have SIGINT and SIGTERM end this process and its engine's processes at once, until vLLM handles the signals.

    vLLM's own handlers raise an exception, and SIGINT's handler waits until vLLM is back in the event loop. While vLLM
    waits for its engine, it is not in the event loop, and the exception is lost in the call of ZeroMQ that waits
    (pyzmq 27).

    Args:
        leave: called with the signal's number; ends this process.
    """
    from vllm.utils.system_utils import kill_process_tree

    def end(number: int, frame: FrameType | None) -> None:
        for process in multiprocessing.active_children():
            if process.pid is not None:
                kill_process_tree(process.pid)
        leave(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
