"""Holds back the output of vLLM and other libraries while settings are checked; a terminal shows the progress."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from server.start_up.held_output import HeldOutput


@contextlib.contextmanager
def checking(*, verbose: bool = False) -> Iterator[None]:
    """A context for code that imports vLLM to check settings: output is held back.

    Args:
        verbose: hold nothing back.
    """
    if verbose:
        _prepare(verbose=True)
        yield
        return
    from rich.console import Console

    # A copy of stderr, made before HeldOutput replaces it.
    with os.fdopen(os.dup(2), "w") as stderr, HeldOutput(), Console(file=stderr).status("checking the settings"):
        _prepare(verbose=False)
        yield


def _prepare(*, verbose: bool) -> None:
    from posenc_runtime.vllm_adapter import serving  # takes seconds to import

    serving.prepare_environment(verbose=verbose)
