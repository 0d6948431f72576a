"""Lets a process that has imported vLLM and torch end without a search for garbage."""

from __future__ import annotations

import atexit
import gc


def exit_quickly() -> None:
    """Have the interpreter look for no garbage when this process ends; may be called again.

    It would look at every object of torch and vLLM, several times. On a busy CPU this takes seconds, and each process
    waits for those that it started. The kernel takes back the memory anyway.
    """
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
