"""The verbs of the Makefile."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def verbs(*target: str) -> list[str]:
    listed = subprocess.run(["make", *target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line.split()[1] for line in listed.splitlines() if line.startswith("  make ") and "help-all" not in line]


def test_make_lists_the_ten_verbs_that_people_need_and_help_all_every_one() -> None:
    usual, every = verbs(), verbs("help-all")
    assert len(usual) == 10 and {"setup", "serve", "test", "check", "docs", "clean"} <= set(usual) < set(every)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(every) == set(phony.split()) - {"help", "help-all", "environment"}


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
