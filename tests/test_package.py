"""What an installation that is not editable holds."""

from __future__ import annotations

import pathlib
import subprocess
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def package_data() -> dict[str, list[str]]:
    """The patterns of each package. A star stays within one folder, for setuptools as for pathlib."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns: dict[str, list[str]] = settings["package-data"]
    return patterns


def test_every_tracked_file_that_is_not_python_goes_into_the_wheel() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout, and only git says which files are ours")
    patterns = package_data()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns, "configs"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    tracked = [name for name in listed.split("\0") if name and not name.endswith(".py")]
    ours = {name for name in tracked if not (ROOT / name).is_symlink()}
    # server/configs is a link: what lies behind it goes into the wheel.
    packed = {
        (package, pattern): {path.resolve().relative_to(ROOT).as_posix() for path in (ROOT / package).glob(pattern)}
        for package, globs in patterns.items()
        for pattern in globs
    }
    assert not ours - set().union(*packed.values())
    assert not [pattern for pattern, files in packed.items() if not files & ours]
