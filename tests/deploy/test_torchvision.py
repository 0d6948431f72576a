"""The environment's torchvision, whichever build set-up found."""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

PROGRAM = """
import torch, torchvision
from torchvision.transforms.v2 import functional
print(*functional.resize(torch.arange(4.0).view(1, 2, 2), [4, 4], antialias=True).shape)
"""


def test_it_goes_with_the_torch_of_the_environment() -> None:
    script = pathlib.Path(__file__).parents[2] / "deploy" / "environment.sh"
    release = importlib.metadata.version("torchvision").partition("+")[0]
    assert f" torchvision=torchvision=={release} " in script.read_text()
    (of_torch,) = (
        required
        for required in map(Requirement, importlib.metadata.requires("torchvision") or [])
        if required.name == "torch"
    )
    assert importlib.metadata.version("torch") in of_torch.specifier


@pytest.mark.release
def test_a_new_interpreter_imports_it_and_changes_the_size_of_an_image() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 4 4\n"), done.stderr
