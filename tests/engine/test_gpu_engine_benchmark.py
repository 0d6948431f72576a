"""The engine's benchmark for a GPU, rehearsed on the CPU: what it asks of engines runs, and is not called measured.

But for attention that rotates, which is for GPUs only.
"""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.benchmarks.gpu import output
from tests.benchmarks.gpu_engine import __main__ as program
from tests.benchmarks.gpu_engine.sizes import TINY


@pytest.mark.release
@pytest.mark.parametrize("part", [part for part in program.PARTS if part != "fused"])
def test_a_rehearsal_answers_every_row(part: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(output.RESULTS.iterdir())
    program.main(only=[part], rehearse=True, out=tmp_path / "rehearsal")
    assert sorted(output.RESULTS.iterdir()) == before
    written = json.loads((tmp_path / "rehearsal.json").read_text())
    assert written["rehearsal"] is True
    assert [row["name"] for row in written["rows"]] == [row.name for row in program.PARTS[part].rows(TINY)]
    assert all(row["value"]["value"] > 0 for row in written["rows"])
    assert written["samples"].keys() == {part}
    assert "Nothing here is a measurement." in capsys.readouterr().out
