"""While settings are checked, what vLLM and other libraries write is held back, and a terminal shows what we do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from server.held_output import HeldOutput


@contextlib.contextmanager
def checking(*, verbose: bool = False) -> Iterator[None]:
    """Where vLLM is imported and asked.

    Args:
        verbose: hold nothing back.
    """
    from rich.console import Console

    from posenc_runtime.vllm_adapter import serving

    serving.prepare_environment(verbose=verbose)
    if verbose:
        yield
        return
    # A copy of where this process writes to, before that is held.
    with os.fdopen(os.dup(2), "w") as stderr, HeldOutput(), Console(file=stderr).status("checking the settings"):
        yield
