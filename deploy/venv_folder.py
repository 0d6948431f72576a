"""The folder of the virtual environment: its record of how it was made, its lock, and the commands run in it.

Its syntax is that of Python 3.8, as environment.py says.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from progress import PipNews, canonical


class NotOurs(Exception):
    """A folder that somebody else made stands where the environment should be."""


class VenvFolder:
    """A virtual environment that a set-up makes, and may find half made."""

    def __init__(self, folder: Path, sources: Path) -> None:
        self.folder = folder
        self._sources = sources
        self.python = folder / "bin" / "python"
        self.log = folder / "setup.log"
        self._record = folder / "posenc-setup.json"
        self._lock: int | None = None

    def record(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._record.read_text()))
        except (OSError, ValueError):
            return {}

    def write_record(self, **fields: Any) -> None:
        fresh = self._record.with_suffix(".new")
        fresh.write_text(json.dumps(fields, indent=2) + "\n")
        fresh.replace(self._record)

    def ready(self, mark: str) -> bool:
        made = self.record()
        whole = self.python.exists() and os.access(self.folder / "bin" / "posenc", os.X_OK)
        return made.get("ready") is True and made.get("mark") == mark and whole

    def lock(self) -> None:
        """One set-up at a time. pip inherits the lock, so that one which outlives its set-up is waited for as well."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(f"{self.folder}.lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another set-up is at work in {self.folder}; waiting for it", flush=True)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def usable(self, device: str) -> bool:
        """Whether what is there can be built upon. The two builds of vLLM share their files: the device must match."""
        if self.record().get("device", device) != device:
            return False
        ask = [str(self.python), "-c", "import pip, sys; print(*sys.version_info[:2])"]
        try:
            answer = subprocess.run(ask, capture_output=True, text=True, check=False)
        except OSError:
            return False
        return answer.stdout.split() == [str(part) for part in sys.version_info[:2]]

    def clear(self) -> None:
        """Empty the folder, unless somebody else made it."""
        if self.folder.exists():
            if any(self.folder.iterdir()) and not self.record():
                raise NotOurs(f"{self.folder} was not made by this set-up and cannot be built upon: move it away")
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)

    def installed(self) -> set[str]:
        """The packages whose files are all in place: pip writes INSTALLER after them."""
        return {canonical(info.name.split("-")[0]) for info in self._dist_infos() if (info / "INSTALLER").exists()}

    def has(self, requirement: str) -> bool:
        name = requirement.replace("==", "-")
        return any(info.name == f"{name}.dist-info" for info in self._dist_infos())

    def drop_half_installed(self) -> None:
        """Remove what a killed pip left, which the next one would take for a package that is installed.

        pip completes RECORD last of all, and only then does it name INSTALLER.
        """
        for info in self._dist_infos():
            record = info / "RECORD"
            if not record.exists() or "/INSTALLER," not in record.read_text(errors="replace"):
                shutil.rmtree(info)
        for moved_aside in self.folder.glob("lib/python3.*/site-packages/~*"):
            if moved_aside.is_dir():
                shutil.rmtree(moved_aside)
            else:
                moved_aside.unlink()

    def _dist_infos(self) -> list[Path]:
        return list(self.folder.glob("lib/python3.*/site-packages/[!~]*.dist-info"))

    def run(self, arguments: Sequence[str], tick: Callable[[str], None], python: str | Path = "") -> str | None:
        """Run Python with its output in the log, telling what pip is doing; the last line, or None on failure."""
        command = [str(python or self.python), *arguments]
        ours = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
        inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        news, last, unfinished = PipNews(), "", b""
        with self.log.open("ab", buffering=0) as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            with subprocess.Popen(
                command,
                cwd=self._sources,
                env={**inherited, **ours, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[] if self._lock is None else [self._lock],
            ) as process:
                assert process.stdout is not None
                try:
                    while True:
                        tick(news.now(self.installed))
                        if not select.select([process.stdout], [], [], 0.12)[0]:
                            continue
                        chunk = os.read(process.stdout.fileno(), 65536)
                        if not chunk:
                            break
                        log.write(chunk)
                        *lines, unfinished = (unfinished + chunk).split(b"\n")
                        for line in lines:
                            last = line.decode(errors="replace").strip() or last
                            news.read(last)
                except BaseException:
                    process.terminate()
                    raise
            log.write(f"(exit status {process.returncode})\n".encode())
        return last if process.returncode == 0 else None

    def broken(self, packages: Iterable[str], tick: Callable[[], None]) -> list[str]:
        """Those of the packages that are installed and cannot be imported; a bad library may end the process."""
        there = self.installed()
        trials = {
            name: subprocess.Popen(
                [str(self.python), "-I", "-c", f"import {name}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for name in packages
            if name in there
        }
        while any(trial.poll() is None for trial in trials.values()):
            tick()
            time.sleep(0.12)
        return [name for name, trial in trials.items() if trial.returncode != 0]
