"""How a process ends: as soon as the process that started it is gone, and without a search for garbage."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import multiprocessing
import os
import pathlib
import select
import signal
import sys
import threading
from typing import Any

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Does nothing in a process that multiprocessing has not
    started, and on other systems than Linux.

    The kernel looks at the thread that has started this process, which may end long before the parent does, unless it
    is the main one. Where another thread or a fork server has started it, a thread of ours watches the parent.
    """
    declared = multiprocessing.parent_process()
    if sys.platform != "linux" or declared is None or declared.pid is None:
        return
    starter = os.getppid()
    if starter == declared.pid and _was_started_by_main_thread(starter):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(declared,), daemon=True, name="PosencParentWatch").start()
    # The parent may have ended before the kernel was told.
    if os.getppid() != starter or not declared.is_alive():
        _end()


def leave_process_group() -> None:
    """Take this process out of its parent's group.

    The terminal sends an interrupt to the whole group. The parent alone decides what it means for its children.
    """
    with contextlib.suppress(OSError):  # a leader of a session is alone already
        os.setpgid(0, 0)


def _was_started_by_main_thread(parent: int) -> bool:
    try:
        children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return False  # a kernel without this file, or another user's process
    return str(os.getpid()) in children


def _watch(parent: Any) -> None:
    try:
        process = os.pidfd_open(parent.pid)
    except OSError:  # it has ended, or the kernel is older than 5.3
        parent.join()  # by a pipe, which processes that were forked from the parent hold open, too
    else:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        ended.poll()
    _end()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_quickly() -> None:
    """Have the interpreter look for no garbage when this process ends; may be called again.

    It would look at every object of torch and vLLM, several times. On a busy CPU this takes seconds, and each process
    waits for those that it started. The kernel takes back the memory anyway.
    """
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
