"""Make the project's environment: a virtual environment holding the build of vLLM that this machine can run.

It uses the standard library alone, because it runs before anything is installed, and its syntax is that of Python 3.8,
so that an interpreter that is too old can still look for a newer one instead of failing on the first line.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from installer import COMPANIONS, Installer
from progress import Progress, duration
from venv_folder import NotOurs, VenvFolder

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)

# The CPU build of vLLM asks for this exact torch, which lies on PyTorch's own index only. Mirrors that the user has set
# are asked first. PyTorch's index is asked for this one wheel alone: otherwise it would be asked about every package.
TORCH_CPU = "torch==2.13.0+cpu"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# The release that goes with this torch. vLLM's models that see import it.
TORCHVISION = "torchvision==0.28.0"
SCHEMAS = "torchvision_schemas"

# -I: what the current folder would supply does not count as installed. Our packages are imported no deeper than their
# top, so that a mistake in a source does not stop the environment in which it would be found.
VERIFY = (
    "-I",
    "-c",
    """
import importlib.metadata
import torch, transformers, vllm, posenc_runtime, server
from vllm import LLM
plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
assert any(plugin.name == "posenc" for plugin in plugins), "vLLM would not find the posenc plug-in"
print("vllm", vllm.__version__, "torch", torch.__version__, "transformers", transformers.__version__)
""",
)

HINTS = (
    (r"No space left on device", "The disk is full: the environment takes about 4 GB, and 9 GB for CUDA."),
    (r"ResolutionImpossible", "If you changed pyproject.toml, run make constraints, which pins releases again."),
    (
        r"No matching distribution found for torch==",
        f"This build of PyTorch comes from {TORCH_CPU_INDEX}: check that it can be reached.",
    ),
    (
        r"ConnectionError|ConnectTimeout|ReadTimeout|Name or service not known|Max retries exceeded|ProxyError",
        "The package index could not be reached: check the network, or pip's proxy and index settings.",
    ),
)


class SetupError(Exception):
    """A set-up that cannot go on, told with what its reader can do about it."""


def supported(version: tuple[int, ...]) -> bool:
    return OLDEST <= version[:2] <= NEWEST


def version_of(python: str | Path) -> tuple[int, ...] | None:
    """What the interpreter itself says: a name on PATH may be a shim with nothing behind it."""
    ask = [str(python), "-c", "import sys; print(*sys.version_info[:3])"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True)
        return tuple(int(part) for part in answer.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def find_interpreter(names: Iterable[str], ask: Callable[[str], tuple[int, ...] | None] = version_of) -> str:
    """The first of the names that runs and is supported."""
    for name in names:
        version = ask(name)
        if version is not None and supported(version):
            return name
    bounds = " to ".join(".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
    raise SetupError(f"Python {bounds} is needed. Install one, or name it: make setup PYTHON=/path/to/python3.11")


def has_nvidia_gpu() -> bool:
    """Whether a GPU and its driver are there; nvidia-smi is asked last because it can take seconds."""
    if Path("/dev/nvidia0").exists():
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return False
        return True
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0


def wanted_device(settings: Mapping[str, str], detect: Callable[[], bool] = has_nvidia_gpu) -> str:
    asked = settings.get("POSENC_DEVICE", "")
    if asked not in ("", "cpu", "cuda"):
        raise SetupError(f"POSENC_DEVICE must be cpu or cuda, got {asked!r}: unset it, and the device is detected")
    return asked or ("cuda" if detect() else "cpu")


def fingerprint(sources: Iterable[bytes], choices: Iterable[str]) -> str:
    """Changes whenever the environment would: with these files, the extras, the interpreter or its place."""
    parts = [hashlib.sha256(source).hexdigest() for source in sources]
    return hashlib.sha256("\n".join([*parts, *choices]).encode()).hexdigest()


def constraints(device: str) -> Path:
    """The releases that are known to work together; the file's head says how it was made."""
    return ROOT / "deploy" / f"constraints-{device}.txt"


def hint(log: str) -> str:
    advice = [text for pattern, text in HINTS if re.search(pattern, log)]
    return " ".join([*advice[:1], "Run make setup again: it goes on from where it stopped."])


class Setup:
    """The steps from an empty folder, or from what an interrupted set-up left there, to verified imports."""

    def __init__(self, venv: VenvFolder, device: str, extras: str) -> None:
        self._venv, self._device, self._extras = venv, device, extras
        self._own_torch = device == "cpu" and sys.platform == "linux"
        self._progress = Progress(steps=5 if self._own_torch else 4)

    def run(self) -> None:
        try:
            self._virtual_environment()
            self._packages()
            self._torchvision()
            self._imports()
        except BaseException:
            self._progress.failed()
            raise

    def _virtual_environment(self) -> None:
        self._progress.start("virtual environment, Python {}.{}".format(*sys.version_info))
        fits = self._venv.usable(self._device)
        if not fits:
            self._venv.clear()
        elif self._venv.record():
            self._venv.drop_half_installed()
        self._venv.write_record(ready=False, device=self._device)
        self._venv.log.write_bytes(b"")
        if not fits and self._run(sys.executable, "-m", "venv", str(self._venv.folder)) is None:
            self._fail()
        self._installer = Installer(self._venv, self._progress.tick)
        self._progress.done("already there" if fits else "")

    def _packages(self) -> None:
        if self._own_torch:
            wheel = ("--no-deps", TORCH_CPU)
            self._install(f"PyTorch {TORCH_CPU.split('==')[1]}", wheel, (*wheel, "--extra-index-url", TORCH_CPU_INDEX))
        # One resolution for vLLM, posenc and its tools: in two, the second could undo what the first chose.
        packages = ("--constraint", str(constraints(self._device)), "--editable", f".[{self._extras}]")
        # A mirror may hold the wheel for the CPU, which counts as newer than the one for CUDA.
        other_torch = () if self._own_torch else (TORCH_CPU.replace("==", "!="),)
        self._install(f"vLLM for {self._device}, posenc and its tools", (*packages, *other_torch))

    def _torchvision(self) -> None:
        """The build for this torch. Elsewhere than on PyTorch's own index there may be none for the CPU."""
        self._progress.start(TORCHVISION)
        for_cpu = (f"{TORCHVISION}+cpu",)
        own = (for_cpu, (*for_cpu, "--extra-index-url", TORCH_CPU_INDEX)) if self._own_torch else ()
        found = self._installer.install_alone(*own, (TORCHVISION,))
        if found is None:
            self._fail()
        self._venv.declare(SCHEMAS, self._own_torch and found not in own)
        self._progress.done(f"with {self._installer.tool}")

    def _install(self, label: str, *ways: tuple[str, ...]) -> None:
        self._progress.start(label)
        if not self._installer.install(*ways):
            self._fail()
        self._progress.done(f"with {self._installer.tool}")

    def _imports(self) -> None:
        self._progress.start("trial import")
        versions = self._run(str(self._venv.python), *VERIFY)
        if versions is None:
            self._fail()
        self._progress.done(versions)

    def _run(self, *command: str) -> str | None:
        return self._venv.run(command, self._progress.tick)

    def _fail(self) -> NoReturn:
        output = self._venv.log.read_text(errors="replace").rpartition("\n$ ")[2]
        # pip can print a thousand characters in one line.
        tail = "\n".join(f"    {line[:200]}" for line in output.splitlines()[-20:])
        raise SetupError(f"a command failed. The last lines of {self._venv.log}:\n{tail}\n{hint(output)}")


def set_up(folder: Path, with_dev: bool, quiet: bool) -> None:
    began = time.monotonic()
    device = wanted_device(os.environ)
    extras = f"{device},dev" if with_dev else f"{device},smollm2"
    modules = sorted(Path(__file__).parent.glob("*.py"))
    sources = [ROOT / "pyproject.toml", constraints(device), ROOT / COMPANIONS, *modules]
    mark = fingerprint((source.read_bytes() for source in sources), (extras, str(sys.version_info[:2]), str(folder)))
    venv = VenvFolder(folder, ROOT)
    if not venv.ready(mark):
        venv.lock()
    if venv.ready(mark):
        if not quiet:
            print(f"{folder} is ready ({device})")
        return
    Setup(venv, device, extras).run()
    venv.write_record(ready=True, device=device, mark=mark)
    print(f"{folder} is ready ({device}), made in {duration(time.monotonic() - began)}")


def stop(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quiet", action="store_true", help="print nothing if the environment is ready")
    parser.add_argument("--no-dev", action="store_true", help="leave out the tools for tests and checks")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    try:
        if not supported(sys.version_info[:2]):
            python = find_interpreter(("python3.11", "python3.12", "python3.13"))
            os.execvp(python, [python, *sys.argv])
        folder = Path(os.environ.get("POSENC_VENV") or ".venv")
        set_up(ROOT / folder, with_dev=not options.no_dev, quiet=options.quiet)
    except (SetupError, NotOurs) as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: run make setup again, it goes on from where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
