"""The verbs of the Makefile."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_make_lists_its_verbs() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for verb in ("setup", "serve", "test", "check", "bench", "accuracy", "picture", "train-demo", "clean"):
        assert f"make {verb} " in listed


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ((), "demo"),
        (("MODEL=smollm2",), "smollm2"),
        (("MODEL=Qwen/Qwen3-8B",), "Qwen/Qwen3-8B"),
        (("CONFIG=configs/demo.yaml",), "--config configs/demo.yaml"),
        (("PORT=8001",), "demo --port 8001"),
    ],
)
def test_make_serve_serves_a_model_or_a_file(asked: tuple[str, ...], served: str) -> None:
    # A variable of this name in the environment is somebody else's.
    environment = os.environ | {"MODEL": "another", "PORT": "another"}
    # Below another make, which may run this test, make would also print folders.
    command = ["make", "--no-print-directory", "-n", "serve", *asked]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment).stdout
    assert said.endswith(f"/posenc serve {served}\n")
