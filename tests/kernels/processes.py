"""Triton in a process of its own: it decides at import whether it interprets, and vLLM switches it off."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

_RUN = "import runpy, sys; [runpy.run_path(script, run_name='__main__') for script in sys.argv[1:]]"


def output_of(*scripts: str, **environment: str) -> str:
    """What scripts of this folder print. They run one after another: some take less time than the import of torch."""
    finished = subprocess.run(
        [sys.executable, "-c", _RUN, *(str(pathlib.Path(__file__).with_name(script)) for script in scripts)],
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout
