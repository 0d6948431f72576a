"""What is built for a release: what it holds, and that it serves where there is nothing else of ours."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator

import httpx
import pytest

from tests.benchmarks.servers import Command, running
from tests.engine.clean_environment import CleanEnvironment, run, uv
from tests.engine.device import ON_CUDA

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
# With nothing in its cache, an installer downloads a gigabyte.
pytestmark = pytest.mark.timeout(1800)

NOT_OURS = shutil.ignore_patterns(".git", ".venv*", "*.egg-info", "__pycache__", "build", "dist", ".*_cache")


@pytest.fixture(scope="module")
def work() -> Iterator[pathlib.Path]:
    """A folder outside of the checkout that goes afterwards: pytest keeps its own, and an environment is large."""
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder).resolve()


@pytest.fixture(scope="module")
def sources(work: pathlib.Path) -> pathlib.Path:
    """What a fresh checkout would have: leftovers of other builds would go into this one."""
    copy = work / "sources"
    if not (ROOT / ".git").exists():
        shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_OURS)
        return copy
    for name in files_of_git():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def files_of_git() -> list[str]:
    """Files that are tracked or may come to be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and ((ROOT / name).is_symlink() or (ROOT / name).exists())]


@pytest.fixture(scope="module")
def built(work: pathlib.Path, sources: pathlib.Path) -> pathlib.Path:
    """A folder with the sdist, and the wheel that was built from it."""
    installer = "uv" if uv() else "pip"
    run([sys.executable, "-m", "build", "--installer", installer, "--outdir", str(work / "dist"), "."], sources)
    return work / "dist"


@pytest.fixture(scope="module")
def wheel(built: pathlib.Path) -> pathlib.Path:
    return built / f"posenc-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="module")
def in_wheel(wheel: pathlib.Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def in_sdist(built: pathlib.Path) -> set[str]:
    with tarfile.open(built / f"posenc-{VERSION}.tar.gz") as archive:
        return {member.name.removeprefix(f"posenc-{VERSION}/") for member in archive.getmembers() if not member.isdir()}


def test_a_release_is_one_sdist_and_one_wheel(built: pathlib.Path) -> None:
    assert {path.name for path in built.iterdir()} == {f"posenc-{VERSION}.tar.gz", f"posenc-{VERSION}-py3-none-any.whl"}


def test_the_wheel_holds_both_packages_and_nothing_beside_them(in_wheel: set[str]) -> None:
    assert {name.partition("/")[0] for name in in_wheel} == {"posenc_runtime", "server", f"posenc-{VERSION}.dist-info"}
    sources = {
        path.relative_to(ROOT).as_posix() for top in ("posenc_runtime", "server") for path in (ROOT / top).rglob("*.py")
    }
    assert {name for name in in_wheel if name.endswith(".py")} == sources


def test_the_wheel_holds_what_is_no_python(in_wheel: set[str]) -> None:
    configurations = {f"server/configs/{path.name}" for path in (ROOT / "configs").glob("*.yaml")}
    assert len(configurations) >= 8 and configurations <= in_wheel
    demo = {f"posenc_runtime/zoo/demo/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json")}
    kernels = {f"posenc_runtime/kernels/cpu/{name}" for name in ("bias.cpp", "cope.cpp", "paged.h", "lanes.h")}
    assert demo | kernels | {"posenc_runtime/py.typed", "server/py.typed"} <= in_wheel
    assert f"posenc-{VERSION}.dist-info/licenses/LICENSE" in in_wheel


def test_the_wheel_says_where_its_changelog_is(wheel: pathlib.Path) -> None:
    metadata = zipfile.ZipFile(wheel).read(f"posenc-{VERSION}.dist-info/METADATA").decode()
    assert "\nProject-URL: Changelog, https://github.com/posenc/posenc/blob/main/CHANGELOG.md\n" in metadata
    assert f"\nVersion: {VERSION}\n" in metadata and "\nLicense-Expression: Apache-2.0\n" in metadata


def test_the_sdist_holds_all_that_a_checkout_does(in_sdist: set[str]) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout, and only git says which files are ours")
    # The link is a folder there.
    assert set(files_of_git()) - in_sdist == {"server/configs"}
    assert {name.removeprefix("server/") for name in in_sdist if name.startswith("server/configs/")} <= in_sdist
    assert {"CHANGELOG.md", "LICENSE"} <= in_sdist


@pytest.fixture(scope="module")
def installed(work: pathlib.Path, wheel: pathlib.Path) -> CleanEnvironment:
    environment = CleanEnvironment(work)
    if ON_CUDA:
        environment.install_for_cuda(wheel)
    else:
        environment.install_for_cpu(wheel)
    return environment


@pytest.mark.release
def test_nothing_of_the_checkout_is_imported_there(installed: CleanEnvironment, work: pathlib.Path) -> None:
    code = "import posenc_runtime, server.deployment.load; print(posenc_runtime.__file__, server.__file__, sep='\\n')"
    files = installed.run(str(installed.python), "-c", code).splitlines()
    assert len(files) == 2 and all(pathlib.Path(file).is_relative_to(work / "venv") for file in files)


@pytest.mark.release
def test_the_requirements_of_the_wheel_are_met(installed: CleanEnvironment) -> None:
    code = "import posenc_runtime; print(posenc_runtime.__version__, posenc_runtime.engine_arguments.__name__)"
    assert installed.run(str(installed.python), "-c", code) == f"{VERSION} engine_arguments\n"
    assert "demo  package:posenc_runtime/zoo/demo" in installed.run(installed.command("posenc"), "configs")


@pytest.mark.release
def test_an_installed_server_answers_a_request_that_outgrows_its_scale(
    installed: CleanEnvironment, work: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = installed.run(installed.command("posenc"), "configs", "demo").strip()
    assert pathlib.Path(file).is_relative_to(work / "venv")
    monkeypatch.chdir(installed.empty)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    serve = (installed.command("posenc"), "serve", "--config", file, "--set", "server.port={port}")
    with running(Command(serve)) as address:
        asked = {"model": "demo", "prompt": [7] * 440, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{address}/v1/completions", json=asked, timeout=300)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["total_tokens"] == 540
    # 440 tokens and the headroom of 64 are admitted within the trained 512, which the answer then outgrows.
    assert answer.json()["kv_transfer_params"]["posenc"] == {
        "rope_type": "yarn",
        "scale": 2.0,
        "admission_tokens": 504,
        "crossings": [{"at": 512, "from": 1.0, "to": 2.0, "how": "rerotate"}],
    }
