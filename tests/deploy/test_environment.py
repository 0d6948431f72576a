"""What the set-up decides, by the machine and by what is asked for, and what it is written in."""

from __future__ import annotations

import ast
import pathlib
import sys
import tomllib

import pytest
from environment import SetupError, find_interpreter, fingerprint, hint, supported, version_of, wanted_device

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = ["environment.py", "installer.py", "progress.py", "venv_folder.py"]


@pytest.mark.parametrize("name", MODULES)
def test_an_interpreter_that_is_too_old_can_still_read_the_set_up(name: str) -> None:
    ast.parse((DEPLOY / name).read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("name", MODULES)
def test_the_set_up_imports_nothing_that_must_be_installed_first(name: str) -> None:
    tree = ast.parse((DEPLOY / name).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {name.removesuffix(".py") for name in MODULES}
    assert {module.partition(".")[0] for module in imported} <= sys.stdlib_module_names | own


def test_supported_versions_are_those_of_pyproject() -> None:
    assert PYPROJECT["project"]["requires-python"] == ">=3.11,<3.14"
    assert [minor for minor in range(8, 20) if supported((3, minor))] == [11, 12, 13]


def test_the_first_interpreter_that_runs_and_is_new_enough_is_taken() -> None:
    found = {"python3": (3, 9, 1), "python3.11": None, "python3.12": (3, 12, 4), "python3.13": (3, 13, 0)}
    assert find_interpreter(found, ask=found.__getitem__) == "python3.12"


def test_without_a_fitting_interpreter_the_error_names_the_versions() -> None:
    with pytest.raises(SetupError, match=r"Python 3\.11 to 3\.13 is needed"):
        find_interpreter(["python3"], ask=lambda name: (3, 14, 0))


def test_a_name_with_nothing_behind_it_has_no_version(tmp_path: pathlib.Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert version_of(shim) is None
    assert version_of(tmp_path / "missing") is None
    assert version_of(sys.executable) == sys.version_info[:3]


@pytest.mark.parametrize(("gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_the_device_is_what_the_machine_has(gpu: bool, device: str) -> None:
    assert wanted_device({}, detect=lambda: gpu) == device


@pytest.mark.parametrize("asked", ["cpu", "cuda"])
def test_a_device_that_is_asked_for_is_not_detected(asked: str) -> None:
    assert wanted_device({"POSENC_DEVICE": asked}, detect=lambda: pytest.fail("detected")) == asked


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(SetupError, match="POSENC_DEVICE must be cpu or cuda, got 'gpu'"):
        wanted_device({"POSENC_DEVICE": "gpu"})


def test_the_fingerprint_changes_with_each_file_and_each_choice() -> None:
    marks = {
        fingerprint(sources, choices)
        for sources in ([b"a", b"b"], [b"a", b"c"], [b"b", b"a"])
        for choices in (["cpu", "3.11"], ["cuda", "3.11"], ["cpu", "3.12"])
    }
    assert len(marks) == 9


def test_the_same_environment_has_the_same_fingerprint() -> None:
    assert fingerprint([b"a"], ["cpu"]) == fingerprint([b"a"], ["cpu"])


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("ERROR: [Errno 28] No space left on device", "The disk is full"),
        ("ERROR: ResolutionImpossible: for help visit", "make constraints"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "check that it can be reached"),
        ("WARNING: Retrying ... NewConnectionError", "check the network"),
        ("a traceback", "Run make setup again"),
    ],
)
def test_a_failure_says_what_to_do(output: str, advice: str) -> None:
    assert advice in hint(output)
    assert hint(output).endswith("Run make setup again: it goes on from where it stopped.")
