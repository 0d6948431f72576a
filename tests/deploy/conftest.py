"""A virtual environment with nothing in it but the names of its programs."""

from __future__ import annotations

import pathlib

import pytest
from venv_folder import VenvFolder


@pytest.fixture
def venv(tmp_path: pathlib.Path) -> VenvFolder:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for name in ("python", "posenc"):
        (tmp_path / "venv" / "bin" / name).touch(mode=0o755)
    return VenvFolder(tmp_path / "venv", sources=tmp_path)
