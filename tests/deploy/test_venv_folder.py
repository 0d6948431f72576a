"""The folder of an environment: when it is ready, what is cleared out of it, and how commands run in it."""

from __future__ import annotations

import pathlib
import sys

import pytest
from progress import canonical
from venv_folder import NotOurs, VenvFolder


def unpack(venv: VenvFolder, dist_info: str, *files: str, record: str | None) -> pathlib.Path:
    folder = venv.folder / "lib" / "python3.11" / "site-packages" / dist_info
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).touch()
    if record is not None:
        (folder / "RECORD").write_text(record)
    return folder


def test_only_a_finished_set_up_of_the_same_fingerprint_is_ready(venv: VenvFolder) -> None:
    assert not venv.ready("mark")
    venv.write_record(ready=False, device="cpu", mark="mark")
    assert not venv.ready("mark")
    venv.write_record(ready=True, device="cpu", mark="mark")
    assert venv.ready("mark")
    assert not venv.ready("another mark")


@pytest.mark.parametrize("lost", ["python", "posenc"])
def test_an_environment_that_lost_a_program_is_not_ready(venv: VenvFolder, lost: str) -> None:
    venv.write_record(ready=True, device="cpu", mark="mark")
    (venv.folder / "bin" / lost).unlink()
    assert not venv.ready("mark")


def test_a_torn_record_counts_as_none(venv: VenvFolder) -> None:
    (venv.folder / "posenc-setup.json").write_text('{"ready": tr')
    assert venv.record() == {}


def test_what_a_killed_uv_or_pip_left_is_removed_and_the_rest_stays(venv: VenvFolder) -> None:
    whole = unpack(venv, "whole-1.0.dist-info", "METADATA", "INSTALLER", record="whole-1.0.dist-info/INSTALLER,,")
    unrecorded = unpack(venv, "unrecorded-1.0.dist-info", "METADATA", record=None)
    as_in_the_wheel = unpack(venv, "unpacked-1.0.dist-info", "METADATA", record="unpacked/__init__.py,sha256=,4")
    moved_aside = unpack(venv, "~hole-0.9.dist-info", "METADATA", record="")
    venv.drop_half_installed()
    assert whole.exists()
    assert not any(left.exists() for left in (unrecorded, as_in_the_wheel, moved_aside))


def test_an_environment_of_the_other_device_is_not_built_upon(tmp_path: pathlib.Path) -> None:
    venv = VenvFolder(tmp_path / "venv", sources=tmp_path)
    (venv.folder / "bin").mkdir(parents=True)
    venv.python.symlink_to(sys.executable)
    venv.write_record(ready=False, device="cpu")
    assert not venv.usable("cuda")


def test_a_folder_that_somebody_else_made_is_not_emptied(tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(NotOurs, match="must be empty or made by make setup, but it has other files"):
        VenvFolder(tmp_path, sources=tmp_path).clear()
    assert (tmp_path / "thesis.tex").exists()


def test_an_interrupted_folder_is_emptied(venv: VenvFolder) -> None:
    venv.write_record(ready=False, device="cpu")
    venv.clear()
    assert list(venv.folder.iterdir()) == []


def test_a_command_is_logged_and_answers_with_its_last_line(venv: VenvFolder) -> None:
    assert venv.run([sys.executable, "-c", "print('one'); print('two')"], lambda doing: None) == "two"
    assert "one\ntwo\n(exit status 0)" in venv.log.read_text()


def test_a_command_that_fails_answers_nothing(venv: VenvFolder) -> None:
    assert venv.run([sys.executable, "-c", "print('one'); raise SystemExit(3)"], lambda doing: None) is None
    assert venv.log.read_text().endswith("(exit status 3)\n")


def test_a_setting_goes_to_a_command_unless_the_user_has_set_it(
    venv: VenvFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = [sys.executable, "-c", "import os; print(os.environ['UV_INDEX_URL'])"]
    assert venv.run(ask, lambda doing: None, UV_INDEX_URL="of pip") == "of pip"
    monkeypatch.setenv("UV_INDEX_URL", "of the user")
    assert venv.run(ask, lambda doing: None, UV_INDEX_URL="of pip") == "of the user"


def test_the_news_of_an_installation_come_from_the_folder(venv: VenvFolder) -> None:
    unpack(venv, "typing_extensions-4.16.0.dist-info", "METADATA", "INSTALLER", record="")
    unpack(venv, "torch-2.13.0+cpu.dist-info", "METADATA", record="")
    assert venv.installed() == {"typing-extensions"}
    assert canonical("Typing.Extensions") == "typing-extensions"


def test_python_imports_a_declared_module_at_each_start_until_it_is_not_needed(venv: VenvFolder) -> None:
    packages = venv.folder / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    venv.declare("torchvision_schemas", True)
    assert (packages / "torchvision_schemas.pth").read_text() == "import torchvision_schemas\n"
    assert "class Schemas" in (packages / "torchvision_schemas.py").read_text()
    venv.declare("torchvision_schemas", False)
    assert not list(packages.iterdir())
