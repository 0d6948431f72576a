"""Signals, where vLLM does not heed them: while an engine starts, and where several API servers run."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

_API_SERVER = "ApiServer"  # how vLLM's names of their processes begin


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


def heed_repeated_signals() -> None:
    """Leave the first SIGINT or SIGTERM to the handlers of this process. Each further one ends a wait.

    While API servers drain, they are signalled again, and cut their requests. When they have ended, all that is left is
    killed. Call it in the main thread, after vLLM has set its own handlers.
    """
    heeded: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _heeding(signal.getsignal(number), heeded))


def _heeding(stock: Any, heeded: list[int]) -> Any:
    def handle(number: int, frame: FrameType | None) -> None:
        heeded.append(number)
        if len(heeded) > 1:
            _end_wait()
        elif callable(stock):
            stock(number, frame)

    return handle


def _end_wait() -> None:
    from vllm.utils.system_utils import kill_process_tree

    processes = multiprocessing.active_children()
    if servers := [each for each in processes if each.name.startswith(_API_SERVER)]:
        for each in servers:
            each.terminate()
    else:
        for each in processes:
            if each.pid is not None:
                kill_process_tree(each.pid)
