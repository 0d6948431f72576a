"""The images agree with the set-up and with what is in the repository, and lock up what runs in them."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator

import pytest
from packaging.specifiers import SpecifierSet

from tests.deploy import tools

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = {"cpu": DEPLOY / "Dockerfile.cpu", "cuda": DEPLOY / "Dockerfile.cuda"}

pytestmark = pytest.mark.parametrize("device", DOCKERFILES)


def text_of(device: str) -> str:
    return DOCKERFILES[device].read_text(encoding="utf-8")


def copies(device: str) -> Iterator[str]:
    for line in text_of(device).splitlines():
        if line.startswith("COPY "):
            yield from line.split()[1:-1]


def test_hadolint_has_nothing_to_say(device: str) -> None:
    said = subprocess.run([tools.need("hadolint"), str(DOCKERFILES[device])], capture_output=True, text=True)
    assert (said.stdout, said.returncode) == ("", 0)


def test_an_image_copies_what_exists_and_is_not_ignored(device: str) -> None:
    ignored = set((ROOT / ".dockerignore").read_text().split())
    assert list(copies(device))
    for source in copies(device):
        assert (ROOT / source).exists(), source
        assert source.removeprefix("./") not in ignored, source


def test_bases_are_pinned_to_a_release_by_their_tags(device: str) -> None:
    bases = re.findall(r"^FROM (\S+)", text_of(device), re.MULTILINE)
    assert bases and all(re.search(r":v?\d+\.\d+\.\d+(-|$)", base) for base in bases), bases


def test_an_image_has_a_python_that_the_project_supports(device: str) -> None:
    base = re.search(r"^FROM python:(\d+)\.(\d+)", text_of(device), re.MULTILINE)
    assert base is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"{base[1]}.{base[2]}" in SpecifierSet(project["requires-python"])


def test_what_runs_is_not_root_and_has_a_number(device: str) -> None:
    text = text_of(device)
    *_, last = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last)
    assert f"useradd --uid {last.partition(':')[0]} --user-group --home-dir /cache --create-home" in text
    assert text.index(f"USER {last}") > max(match.start() for match in re.finditer(r"^RUN ", text, re.MULTILINE))


def test_everything_that_is_saved_goes_below_the_volume(device: str) -> None:
    assert "HOME=/cache " in text_of(device)
    assert "TORCHINDUCTOR_CACHE_DIR=/cache/" in text_of(device)


def test_the_health_check_asks_whether_the_server_is_ready(device: str) -> None:
    text = text_of(device)
    check = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.+\])$", text, re.MULTILINE)
    assert check is not None
    _, _, code = json.loads(check[1])
    assert "http://127.0.0.1:8000/health/ready" in code
    compile(code, "HEALTHCHECK", "exec")
    assert "EXPOSE 8000" in text


def test_the_image_starts_a_deployment_that_ships(device: str) -> None:
    (name,) = re.findall(r'^CMD \["posenc", "serve", "(.+)"\]$', text_of(device), re.MULTILINE)
    assert (ROOT / "configs" / f"{name}.yaml").exists()


def test_versions_come_from_where_the_project_keeps_them(device: str) -> None:
    text = text_of(device)
    if device == "cpu":
        assert "POSENC_DEVICE=cpu " in text and "sh deploy/environment.sh --no-dev" in text
        # The set-up reads the versions from pyproject.toml: a second copy in an image could only disagree.
        assert not re.search(r"(vllm|torch)\S*==", text)
    else:
        (release,) = re.findall(r"^FROM vllm/vllm-openai:v(\S+)$", text, re.MULTILINE)
        assert f"vllm=={release}" in (DEPLOY / "constraints-cuda.txt").read_text().splitlines()


@pytest.mark.release
def test_what_an_image_copies_is_enough_to_build_the_wheel(device: str, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copies(device):
        target = source / name.removeprefix("./")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path / "wheels"), "."], cwd=source, check=True)
    (wheel,) = (tmp_path / "wheels").glob("posenc-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "posenc = posenc_runtime.vllm_adapter:register" in archive.read(entry_points).decode()
    assert {"server/configs/demo.yaml", "server/cli.py", "posenc_runtime/zoo/demo/config.json"} <= set(names)
