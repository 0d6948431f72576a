"""Which of uv and pip installs, with whose settings, and what happens where one fails. Nothing is installed."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import installer
import pytest
from installer import Installer, pip_settings, uv_settings
from venv_folder import VenvFolder


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
        ("no-cache-dir", "1", {"UV_NO_CACHE": "1"}),
        ("proxy", "http://proxy:3128", {"ALL_PROXY": "http://proxy:3128"}),
        ("progress-bar", "off", {}),
    ],
)
def test_uv_is_told_where_pip_takes_packages_from(name: str, value: str, told: dict[str, str]) -> None:
    assert uv_settings({name: value}) == told


def test_what_is_set_for_pip_is_what_pip_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror/simple")
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    assert pip_settings(told.stdout)["index-url"] == "https://mirror/simple"


class Tools:
    """A uv and a Python with pip that do nothing but note what they were asked, and fail where they are told to."""

    def __init__(self, venv: VenvFolder, on_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.venv, self._on_path, self._asked = venv, on_path, venv.folder / "asked"
        on_path.mkdir()
        monkeypatch.setenv("PATH", f"{on_path}:/usr/bin:/bin")
        self.pip()

    def _make(self, program: pathlib.Path, fails_on: str, config: str = "") -> None:
        program.write_text(
            f"""#!/bin/sh
echo "$(basename "$0") $*" >> "{self._asked}"
case "$*" in *{fails_on}*) exit 1;; *config*) echo "{config}";; esac
case "$0" in */uv) echo "from ${{UV_INDEX_URL-nowhere}}" >> "{self._asked}";; esac
"""
        )
        program.chmod(0o755)

    def pip(self, fails_on: str = "nothing", config: str = "global.index-url='https://mirror'") -> None:
        self._make(self.venv.python, fails_on, config)

    def uv(self, fails_on: str = "nothing") -> None:
        self._make(self._on_path / "uv", fails_on)

    def install(self, *ways: tuple[str, ...]) -> tuple[bool, str]:
        made = Installer(self.venv, lambda doing: None)
        return made.install(*ways), made.tool

    def asked(self) -> list[str]:
        lines = self._asked.read_text().replace(str(self.venv.folder), "VENV").splitlines()
        return [line for line in lines if "config" not in line]


@pytest.fixture
def tools(venv: VenvFolder, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    for name in ("UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    return Tools(venv, tmp_path / "on-path", monkeypatch)


def test_uv_installs_from_where_pip_would_and_leaves_out_the_companions(tools: Tools) -> None:
    tools.uv()
    assert tools.install(("first",), ("second",)) == (True, "uv")
    assert tools.asked() == [
        "uv pip install --python VENV/bin/python --override deploy/companions.txt first",
        "from https://mirror",
        "uv pip uninstall --python VENV/bin/python -r deploy/companions.txt",
        "from https://mirror",
    ]


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_package_alone_brings_nothing_with_it_and_the_way_that_led_to_it_is_said(tools: Tools, tool: str) -> None:
    if tool == "uv":
        tools.uv(fails_on="*first")
        begins = "uv pip install --python VENV/bin/python"
    else:
        tools.pip(fails_on="--only-binary*|*first")
        begins = "python -m pip install --no-compile --prefer-binary"
    made = Installer(tools.venv, lambda doing: None)
    assert made.install_alone(("first",), ("second",)) == ("second",)
    assert [line for line in tools.asked() if line.startswith(begins) and "--no-deps" in line] == [
        f"{begins} --no-deps first",
        f"{begins} --no-deps second",
    ]
    assert made.install_alone(("first",)) is None


def test_what_is_set_to_constrain_pip_constrains_uv(tools: Tools) -> None:
    tools.uv()
    tools.pip(config="global.constraint='/etc/one.txt /etc/two.txt'")
    assert tools.install(("--constraint", "ours")) == (True, "uv")
    assert "--constraint=/etc/one.txt --constraint=/etc/two.txt --constraint ours" in tools.asked()[0]


def test_the_second_way_is_gone_where_the_first_leads_nowhere(tools: Tools) -> None:
    tools.uv(fails_on="first")
    assert tools.install(("first",), ("second",)) == (True, "uv")
    assert [line.split()[-1] for line in tools.asked() if line.startswith("uv pip install")] == ["first", "second"]


def test_where_no_uv_is_on_path_pip_installs_it_from_a_wheel(tools: Tools) -> None:
    Installer(tools.venv, lambda doing: None)
    (asked,) = tools.asked()
    assert asked.startswith("python -m pip install ")
    assert asked.endswith(f"--only-binary uv {installer.UV}")


def test_where_uv_cannot_be_had_pip_installs_and_removes_the_companions(tools: Tools) -> None:
    tools.pip(fails_on="--only-binary*|*first")
    assert tools.install(("first",), ("second",)) == (True, "pip, because uv could not be installed")
    assert tools.asked()[1:] == [
        "python -m pip install --no-compile --prefer-binary first",
        "python -m pip install --no-compile --prefer-binary second",
        "python -m pip uninstall --yes -r deploy/companions.txt",
    ]


def test_where_uv_fails_pip_goes_on_and_says_so(tools: Tools) -> None:
    tools.uv(fails_on="install")
    assert tools.install(("first",)) == (True, f"pip, because uv failed ({tools.venv.log} says why)")
    assert tools.asked()[-2:] == [
        "python -m pip install --no-compile --prefer-binary first",
        "python -m pip uninstall --yes -r deploy/companions.txt",
    ]


def test_pip_installs_where_it_is_told_which_releases_it_may_take(tools: Tools) -> None:
    tools.uv()
    tools.pip(config="global.only-binary='numpy'\n:env:.no-binary='torch'")
    assert tools.install(("first",)) == (True, "pip, because uv has no equal of its settings no-binary, only-binary")
    assert not any(line.startswith("uv") for line in tools.asked())


def test_where_both_fail_nothing_is_installed(tools: Tools) -> None:
    tools.uv(fails_on="install")
    tools.pip(fails_on="install")
    assert tools.install(("first",), ("second",))[0] is False
