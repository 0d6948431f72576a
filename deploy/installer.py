"""What installs packages into the environment: uv where it can be had, pip otherwise. Decision 64.

Its syntax is that of Python 3.8, as environment.py says.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Callable

from venv_folder import VenvFolder

# Where PATH has no uv, this one is installed into the environment.
UV = "uv==0.13.9"

# --no-compile: imports compile what they use, while pip would compile two hundred packages whole.
PIP_INSTALL = ("install", "--no-compile", "--prefer-binary")

# What is left out: vLLM asks for these companions of PyTorch without saying which build, and transformers fails on
# import where it finds those for CUDA beside a torch for the CPU. Set-up installs torchvision by itself, in its build.
COMPANIONS = "deploy/companions.txt"

# uv reads no settings of pip. By these it asks the indexes and mirrors that pip is set to ask, and no others.
UV_NAMES = {
    "index-url": "UV_INDEX_URL",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_OFFLINE",
    "no-cache-dir": "UV_NO_CACHE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}
# Those that say which releases may be installed, and that uv has no equal variable for.
PIP_ALONE = ("no-binary", "only-binary", "uploaded-prior-to")


def pip_settings(config: str) -> dict[str, str]:
    """What `pip config list` says of installing: a section that comes later in this order counts."""
    order = ("global", "install", ":env:")
    lines = [found for section in order for found in re.findall(rf"^{section}\.([a-z-]+)=(.+)$", config, re.MULTILINE)]
    return {name: ast.literal_eval(value) for name, value in lines}


def uv_settings(pip: dict[str, str]) -> dict[str, str]:
    """The environment variables that tell uv the same."""
    told = {variable: " ".join(pip[name].split()) for name, variable in UV_NAMES.items() if name in pip}
    if "UV_FIND_LINKS" in told:
        told["UV_FIND_LINKS"] = told["UV_FIND_LINKS"].replace(" ", ",")
    # To pip all indexes are equal; uv would take a package from the first that has it.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **told} if "UV_EXTRA_INDEX_URL" in told else told


class Installer:
    """Installs into one environment, and says with what."""

    def __init__(self, venv: VenvFolder, tick: Callable[[str], None]) -> None:
        self._venv, self._tick = venv, tick
        # Not through the log, because addresses may hold passwords.
        ask = [str(venv.python), "-m", "pip", "config", "list"]
        pip = pip_settings(subprocess.run(ask, capture_output=True, text=True, check=False).stdout)
        self._settings, only_pip = uv_settings(pip), [name for name in PIP_ALONE if pip.get(name)]
        # Arguments, as the ones that we give ourselves hide the variable for them.
        self._constraints = [f"--constraint={file}" for file in pip.get("constraint", "").split()]
        self._uv = shutil.which("uv") or str(venv.folder / "bin" / "uv")
        self.tool = "uv"
        if only_pip:
            self.tool = f"pip, because uv has no equal of its settings {', '.join(only_pip)}"
        elif not shutil.which(self._uv) and not self._pip(*PIP_INSTALL, "--only-binary", "uv", UV):
            self.tool = "pip, because uv could not be installed"

    def install(self, *ways: tuple[str, ...]) -> bool:
        """Whether one of the ways, told in arguments that uv and pip share, succeeds: with uv, or else with pip."""
        if self.tool == "uv":
            if any(self._uv_pip("install", "--override", COMPANIONS, *self._constraints, *way) for way in ways):
                # They may be left from pip.
                return self._uv_pip("uninstall", "-r", COMPANIONS)
            # pip may have credentials that uv has not.
            self.tool = f"pip, because uv failed ({self._venv.log} says why)"
        return any(self._pip(*PIP_INSTALL, *way) for way in ways) and self._pip("uninstall", "--yes", "-r", COMPANIONS)

    def install_alone(self, *ways: tuple[str, ...]) -> tuple[str, ...] | None:
        """Install one package, whatever else is there: the first of the ways that succeeds, None if none does."""
        for way in ways:
            alone = ("--no-deps", *way)
            if self._uv_pip("install", *alone) if self.tool == "uv" else self._pip(*PIP_INSTALL, *alone):
                return way
        return None

    def _uv_pip(self, verb: str, *arguments: str) -> bool:
        command = (self._uv, "pip", verb, "--python", str(self._venv.python), *arguments)
        return self._venv.run(command, self._tick, **self._settings) is not None

    def _pip(self, *arguments: str) -> bool:
        return self._venv.run((str(self._venv.python), "-m", "pip", *arguments), self._tick) is not None
