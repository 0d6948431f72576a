"""The benchmark of kernels on a GPU, where there is none: every row's code runs, and nothing is said to be measured."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import typer

from tests.benchmarks.gpu import __main__ as program
from tests.benchmarks.gpu import device, peers, worker
from tests.benchmarks.gpu.compiled import Compiled
from tests.benchmarks.gpu.rows import Row
from tests.benchmarks.gpu.sizes import FULL, TINY
from tests.benchmarks.gpu.trials import SUBJECTS, trials
from tests.benchmarks.intervals import Estimate

KERNEL = Compiled("_rotary_store_kernel", registers=64, spills=0, num_warps=4, shared_bytes=2048)
SAID_BY_NVIDIA_SMI = "580.159.04, 143771, 345, 3201, 31, 77.15\n"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_every_row_is_listed_with_the_reason_and_nothing_is_written(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out=tmp_path / "result")
    printed = capsys.readouterr().out
    for row in rows_of(trials(FULL)):
        assert f"- {row.name}, {row.quantity}: needs an NVIDIA GPU, and torch finds none\n" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_of_little_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "memory_bytes", lambda: 24 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    assert device.missing() == "needs 75 GiB of GPU memory, and the NVIDIA L4 has 24"
    monkeypatch.setattr(device, "memory_bytes", lambda: 79 * 2**30)
    assert device.missing() is None and device.short_name() == "l4"


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


def test_a_result_names_device_and_clocks_and_a_failure_ends_the_run_with_status_1(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "name", lambda: "NVIDIA H200")
    monkeypatch.setattr(device, "looked_at", lambda: device.read(SAID_BY_NVIDIA_SMI))

    def answered(asked: Sequence[Any], tell: worker.Tell, **options: Any) -> None:
        for trial in asked:
            tell(trial.name, None)
            first, *others = trial.rows
            measured = first.measured(
                Estimate(0.5, 0.4, 0.6), seconds=(1e-3,), moved=10**9, kernels=(KERNEL,), sm_clock="1980 MHz"
            )
            tell(trial.name, (measured, *(row.failed("on purpose") for row in others)))

    monkeypatch.setattr(worker, "run", answered)
    run(only=["copy"], out=tmp_path / "copied")
    with pytest.raises(typer.Exit):
        run(only=["rotary_store"], out=tmp_path / "rotated")
    written = json.loads((tmp_path / "rotated.json").read_text())
    assert written["device"]["GPU"] == "NVIDIA H200" and written["device"]["SM clock after rounds"] == "1980 MHz"
    assert written["rows"][0]["kernels"] == [dataclasses.asdict(KERNEL)] and written["rounds"] == 30
    markdown = (tmp_path / "rotated.md").read_text()
    assert " GiB, " in markdown
    assert "NVIDIA H200, driver 580.159.04, 143771 MiB of GPU memory, memory clock before 3201 MHz" in markdown
    assert "345 MHz" not in markdown  # of a device that nothing runs on
    assert "Failed:\n\n- rotary_store, 8,192 tokens, times as fast as vLLM's" in markdown
    assert "0 of 1 targets reached that were measured." in markdown and f"; {KERNEL}" in markdown


def test_a_run_that_needs_vllm_does_not_start_without_its_operators(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "missing", lambda: "its operators are missing")
    with pytest.raises(typer.Exit) as ended:
        run(need_vllm=True, rehearse=True, out=tmp_path / "result")
    assert ended.value.exit_code == 1
    assert capsys.readouterr().out == "its operators are missing\n" and list(tmp_path.iterdir()) == []


def test_an_unknown_subject_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match=r"--only must be one of copy, rotary_store, .*, got rope"):
        run(only=["copy", "rope"])


def test_every_subject_can_be_asked_for_and_no_two_trials_share_a_name() -> None:
    for sizes in (FULL, TINY):
        found = trials(sizes)
        assert {trial.subject for trial in found} == set(SUBJECTS)
        assert len({trial.name for trial in found}) == len(found)


def run(**arguments: Any) -> None:
    program.main(**arguments)


def rows_of(asked: Sequence[Any]) -> list[Row]:
    return [row for trial in asked for row in trial.rows]
