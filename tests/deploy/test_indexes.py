"""What uv is told of pip's settings, and which indexes are tried before anything is installed."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from indexes import indexes, pip_settings, unreachable, uv_settings


def test_of_pips_settings_those_for_installing_count_and_the_environment_most() -> None:
    said = pip_settings(
        """:env:.find-links='/wheels'
download.proxy='http://not-for-installing'
global.cert='/etc/company.pem'
global.extra-index-url='file:///one\\nfile:///two'
global.find-links='/a /b'
global.index-url="https://me:it's@mirror/simple"
install.cert='/etc/install.pem'
install.find-links='/c'
"""
    )
    assert said == {
        "cert": "/etc/install.pem",
        "extra-index-url": "file:///one\nfile:///two",
        "find-links": "/wheels",
        "index-url": "https://me:it's@mirror/simple",
    }


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("index-url", "https://mirror", {"UV_INDEX_URL": "https://mirror"}),
        ("extra-index-url", "\n/a\n/b", {"UV_EXTRA_INDEX_URL": "/a /b", "UV_INDEX_STRATEGY": "unsafe-best-match"}),
        ("find-links", "/a /b", {"UV_FIND_LINKS": "/a,/b"}),
        ("no-index", "true", {"UV_OFFLINE": "true"}),
        ("proxy", "http://proxy:3128", {"ALL_PROXY": "http://proxy:3128"}),
        ("progress-bar", "off", {}),
    ],
)
def test_uv_is_told_where_pip_takes_packages_from(name: str, value: str, told: dict[str, str]) -> None:
    assert uv_settings({name: value}) == told


def test_what_is_set_for_uv_alone_goes_for_pip_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///it's here")
    monkeypatch.setenv("PIP_ONLY_BINARY", "numpy")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, indexes.__code__.co_filename], capture_output=True, text=True, check=True)
    said = subprocess.run(
        ["sh", "-c", f'{done.stdout}\necho "$PIP_INDEX_URL, $only_pip"'], capture_output=True, text=True, check=True
    )
    assert said.stdout == "file:///it's here, only-binary\n"


def test_the_indexes_that_are_tried_are_those_that_will_be_asked() -> None:
    assert indexes({"UV_INDEX_URL": "http://a/simple", "UV_EXTRA_INDEX_URL": "http://b file:///c"}) == [
        "http://a/simple",
        "http://b",
    ]
    assert indexes({"UV_DEFAULT_INDEX": "http://d", "UV_INDEX_URL": "http://a", "UV_INDEX": "ours=http://e"}) == [
        "http://d",
        "http://e",
    ]
    assert indexes({"UV_INDEX_URL": "http://a", "UV_OFFLINE": "true"}) == []


def test_an_index_is_within_reach_if_something_listens_there_or_at_its_proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens:
        here = f"127.0.0.1:{listens.getsockname()[1]}"
        assert unreachable(f"http://{here}/simple") is None
        assert unreachable("http://nowhere.invalid/simple", proxy=here) is None
    assert unreachable(f"http://{here}/simple") is not None
