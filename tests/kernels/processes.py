"""Triton in a process of its own: it decides at import whether it interprets, and vLLM switches it off."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys


def output_of(script: str, *arguments: str, **environment: str) -> str:
    """What a script of this folder prints."""
    finished = subprocess.run(
        [sys.executable, str(pathlib.Path(__file__).with_name(script)), *arguments],
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout
