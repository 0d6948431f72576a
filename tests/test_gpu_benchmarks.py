"""The benchmark of kernels on a GPU, rehearsed on the CPU: each row answers, counts bytes, and checks its kernel."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from posenc_runtime.kernels import ops
from tests.benchmarks.gpu import __main__ as program
from tests.benchmarks.gpu.rows import Row, State, at_least, at_most
from tests.benchmarks.gpu.sizes import FULL, TINY
from tests.benchmarks.gpu.timing import WallClock
from tests.benchmarks.gpu.trial import Stage
from tests.benchmarks.gpu.trials import trials

pytestmark = pytest.mark.slow

STAGE = Stage(torch.device("cpu"), WallClock(), TINY, rounds=2, warm_ups=0)
KERNELS = {"rotary_store": "rotary_store", "bias": "bias_attention", "cope": "cope_attention", "rerotate": "rerotate"}


def test_a_rehearsal_answers_every_row_or_says_what_it_lacks(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(rehearse=True, out=tmp_path / "new" / "rehearsal")
    written = json.loads((tmp_path / "new" / "rehearsal.json").read_text())
    assert written["rehearsal"] is True
    assert [row["name"] for row in written["rows"]] == [row.name for row in rows_of(trials(TINY))]
    assert {row["why"] for row in written["rows"] if row["state"] == "skipped"} == {
        "vLLM's kernel needs CUDA",
        "torch counts what is allocated on CUDA only",
    }
    assert all(row["value"] for row in written["rows"] if row["state"] != "skipped")
    markdown = (tmp_path / "new" / "rehearsal.md").read_text()
    assert "Nothing here is a measurement." in markdown and "python -m tests.benchmarks.gpu" in markdown
    assert "Skipped:\n\n- rotary_store" in capsys.readouterr().out


@pytest.mark.parametrize("subject", KERNELS)
def test_a_kernel_that_does_nothing_is_not_timed(subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, KERNELS[subject], lambda *arguments: None)
    row = next(iter(next(trial for trial in trials(TINY) if trial.subject == subject).answer(STAGE)))
    assert row.state == State.failed and "Wrong: " in row.why and row.value is None


def test_bytes_are_those_counted_by_hand() -> None:
    model = FULL.model
    assert model.rotary_store_bytes(1) == 24_592
    assert model.rotation_then_store_bytes(1) == 28_944
    assert model.rerotated_bytes(1) == 131_072
    assert model.rerotated_bytes(1, num_pairs=48) == 98_304
    assert model.copied_bytes(1) == 262_144
    assert model.decoded_bytes(8192, 8) == 8 * (8192 * 4096 + 2 * 8192)
    assert model.as_multi_head().cache_bytes(131_072) == 2**31


def test_a_target_is_reached_at_its_bound_and_never_by_what_is_no_number() -> None:
    assert at_least(0.8).is_reached(0.8) and not at_least(0.8).is_reached(0.79)
    assert at_most(5.3).is_reached(5.3) and not at_most(5.3).is_reached(5.31)
    assert not at_least(0).is_reached(float("nan")) and not at_most(9).is_reached(float("nan"))


def run(**arguments: Any) -> None:
    program.main(**arguments)


def rows_of(asked: Sequence[Any]) -> list[Row]:
    return [row for trial in asked for row in trial.rows]
