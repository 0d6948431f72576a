"""The folder of the user's cache that keeps converted models, and the lock under which one is made there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping

from server.wheels.known import NotPrepared, WheelModel

_FORM = 1  # of the converted files: raise it when conversion.py writes something else
VARIABLE = "XDG_CACHE_HOME"


def place_of(model: WheelModel, environment: Mapping[str, str] = os.environ) -> pathlib.Path:
    """The folder of a converted model, there or not: below ``XDG_CACHE_HOME``, or else below ``~/.cache``.

    Raises:
        NotPrepared: when the user has no home folder.
    """
    given = pathlib.Path(environment.get(VARIABLE, ""))
    try:
        # The XDG specification has relative paths ignored.
        cache = given if given.is_absolute() else pathlib.Path.home() / ".cache"
    except RuntimeError:
        raise NotPrepared(
            f"model: a cache folder is needed for {model.requirement}, and this user has no home folder: set {VARIABLE}"
        ) from None
    return cache / "posenc" / "models" / f"{model.requirement.replace('==', '-')}-form{_FORM}"


@contextlib.contextmanager
def lock_folder(place: pathlib.Path, waits: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a converted model: one process makes it, others wait.

    The kernel releases the lock of a process that is killed.

    Args:
        waits: called where another process holds the lock.

    Raises:
        OSError: when the folder cannot be made or written to.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_name(f"{place.name}.lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def workspace(place: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder beside the place of a converted model, deleted at the end. The caller holds the lock.

    Folders that killed processes left behind are deleted, too. Each has a name of its own: what a killed process
    started may still write to its folder for a while.
    """
    prefix = f"{place.name}.part-"
    for left in place.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place.parent, ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)
