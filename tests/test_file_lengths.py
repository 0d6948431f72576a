"""Files of code: short enough to be read in one go."""

from __future__ import annotations

import pathlib

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("deploy", "posenc_runtime", "server", "tests")
KINDS = ("py", "cpp", "h")
MOST_LINES = 400


def test_a_file_of_code_has_at_most_400_lines() -> None:
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in FOLDERS
        for kind in KINDS
        for path in (ROOT / folder).rglob(f"*.{kind}")
    }
    assert {pathlib.PurePath(file).suffix for file in lines} == {f".{kind}" for kind in KINDS}
    assert {file: count for file, count in lines.items() if count > MOST_LINES} == {}
