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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from progress import News, canonical


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
        """One set-up at a time. uv and pip inherit the lock, so that a set-up waits for those that outlived theirs."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(f"{self.folder}.lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another make setup is running in {self.folder}; waiting for it", flush=True)
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
                raise NotOurs(
                    f"{self.folder} must be empty or made by make setup, but it has other files: move it away, or set "
                    "POSENC_VENV to another folder"
                )
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)

    def installed(self) -> set[str]:
        """The packages whose files are all in place: INSTALLER is written after them."""
        return {canonical(info.name.split("-")[0]) for info in self._dist_infos() if (info / "INSTALLER").exists()}

    def drop_half_installed(self) -> None:
        """Remove what a killed uv or pip left, which the next one would take for a package that is installed.

        Both complete RECORD last of all, and only then does it name INSTALLER.
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

    def declare(self, module: str, is_needed: bool) -> None:
        """Have Python import a module of this folder at each start in the environment, or no longer."""
        (packages,) = self.folder.glob("lib/python3.*/site-packages")
        source = Path(__file__).with_name(f"{module}.py")
        for name, text in ((source.name, source.read_text()), (f"{module}.pth", f"import {module}\n")):
            if is_needed:
                (packages / name).write_text(text)
            elif (packages / name).exists():
                (packages / name).unlink()

    def _dist_infos(self) -> list[Path]:
        return list(self.folder.glob("lib/python3.*/site-packages/[!~]*.dist-info"))

    def run(self, command: Sequence[str], tick: Callable[[str], None], **settings: str) -> str | None:
        """Run it with its output in the log, telling what it is doing; the last line, or None on failure.

        Settings are environment variables that the user's own go before.
        """
        ours = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
        inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        news, last, unfinished = News(), "", b""
        with self.log.open("ab", buffering=0) as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            with subprocess.Popen(
                command,
                cwd=self._sources,
                env={**settings, **inherited, **ours, "PYTHONUNBUFFERED": "1"},
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
