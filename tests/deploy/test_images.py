"""The images agree with the set-up and with what is in the repository."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import pytest
from environment import supported

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = {"cpu": DEPLOY / "Dockerfile.cpu", "cuda": DEPLOY / "Dockerfile.cuda"}


def copies(dockerfile: pathlib.Path) -> Iterator[str]:
    for line in dockerfile.read_text().splitlines():
        if line.startswith("COPY "):
            yield from line.split()[1:-1]


@pytest.mark.parametrize("device", DOCKERFILES)
def test_an_image_copies_what_exists_and_is_not_ignored(device: str) -> None:
    ignored = set((ROOT / ".dockerignore").read_text().split())
    for source in copies(DOCKERFILES[device]):
        assert (ROOT / source).exists(), source
        assert source.removeprefix("./") not in ignored, source


@pytest.mark.parametrize("device", DOCKERFILES)
def test_an_image_installs_for_its_device_through_the_set_up(device: str) -> None:
    text = DOCKERFILES[device].read_text()
    assert f"POSENC_DEVICE={device} " in text
    assert "python deploy/environment.py --no-dev" in text
    # The set-up reads the versions from pyproject.toml: a second copy in an image could only disagree.
    assert not re.search(r"(vllm|torch)\S*==", text)


@pytest.mark.parametrize("device", DOCKERFILES)
def test_an_image_has_a_python_that_the_project_supports(device: str) -> None:
    base = re.search(r"^FROM python:(\d+)\.(\d+)", DOCKERFILES[device].read_text(), re.MULTILINE)
    assert base is not None
    assert supported((int(base[1]), int(base[2])))


@pytest.mark.parametrize("device", DOCKERFILES)
def test_an_image_runs_as_a_user_and_reports_its_health(device: str) -> None:
    text = DOCKERFILES[device].read_text()
    assert text.index("USER posenc") > text.index("RUN POSENC_DEVICE=")
    assert "/health" in text
    assert "EXPOSE 8000" in text
    (config,) = re.findall(r'CMD \["posenc", "serve", "--config", "(.+)"\]', text)
    assert (ROOT / config).exists()
