"""The verbs of the Makefile."""

from __future__ import annotations

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_make_lists_its_verbs() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for verb in ("setup", "serve", "test", "check", "bench", "accuracy", "picture", "train-demo", "clean"):
        assert f"make {verb} " in listed
