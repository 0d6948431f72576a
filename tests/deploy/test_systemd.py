"""systemd understands the unit, and the unit's service can do little else than serve."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from tests.deploy import tools

UNIT = pathlib.Path(__file__).resolve().parents[2] / "deploy/systemd/posenc.service"
PROGRAM = "/opt/posenc/.venv/bin/posenc"
# systemd's measure: from 0, which can do nothing, to 10.
MOST_EXPOSED = 2.0


def values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def unit(tmp_path: pathlib.Path) -> pathlib.Path:
    """The unit with a program that is on this machine: systemd looks for it."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text(encoding="utf-8").replace(PROGRAM, f'"{sys.executable}"'), encoding="utf-8")
    return copy


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tools.need("systemd-analyze"), *arguments], capture_output=True, text=True)


def test_systemd_understands_every_line(unit: pathlib.Path) -> None:
    said = analyze("verify", str(unit))
    assert (said.stdout, said.stderr, said.returncode) == ("", "", 0)


def test_systemd_finds_that_the_service_is_hardly_exposed(unit: pathlib.Path) -> None:
    said = analyze("security", "--offline=true", "--no-pager", str(unit))
    level = re.search(r"Overall exposure level for \S+: (\d+\.\d+)", said.stdout)
    assert level is not None, said.stderr
    assert float(level[1]) <= MOST_EXPOSED, said.stdout


def test_a_service_has_longer_to_stop_than_its_requests() -> None:
    (environment,) = (line for line in values("Environment") if "SHUTDOWN_TIMEOUT" in line)
    (stop,) = values("TimeoutStopSec")
    assert int(environment.rpartition("=")[2]) < int(stop)


def test_a_refused_setting_is_not_tried_again() -> None:
    assert values("Restart") == ["on-failure"]
    assert values("RestartPreventExitStatus") == ["2"]


def test_all_that_is_saved_goes_to_the_folder_that_the_service_may_write_to() -> None:
    (folder,) = values("CacheDirectory")
    assert f"HOME=%C/{folder} " in UNIT.read_text(encoding="utf-8")
    assert values("WorkingDirectory") == [f"%C/{folder}"]
