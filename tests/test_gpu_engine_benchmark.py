"""The parts of the engine's benchmark for a GPU that need no engine."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any, Self

import httpx
import pytest
import torch
import typer

from posenc_runtime.vllm_adapter import engine_args
from tests.benchmarks.engine_process import Batch, EngineFailed
from tests.benchmarks.gpu.rows import Row, at_most
from tests.benchmarks.gpu_engine import __main__ as program
from tests.benchmarks.gpu_engine import report, sides
from tests.benchmarks.gpu_engine.part import Part, Stage
from tests.benchmarks.gpu_engine.served import Stream
from tests.benchmarks.gpu_engine.sizes import H200, SCALES, TINY, Sizes
from tests.benchmarks.gpu_engine.stepped import deployment
from tests.benchmarks.intervals import Estimate


def test_without_a_gpu_every_row_is_listed_with_the_reason_and_nothing_is_written(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    program.main(out=tmp_path / "result")
    printed = capsys.readouterr().out
    rows = [row for name in program.USUAL for row in program.PARTS[name].rows(H200)]
    assert len(rows) == 11
    for row in rows:
        assert f"- {row.name}, {row.quantity}: needs an NVIDIA GPU, and torch finds none\n" in printed
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_part_is_refused_by_name() -> None:
    with pytest.raises(typer.BadParameter, match=r"must be one of stepped, .*, got crossing"):
        program.main(only=["crossing"])


def test_a_part_that_fails_is_told_and_written_and_the_next_one_runs(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(sizes: Sizes) -> list[Row]:
        return [Row("this", "ms", at_most(2))]

    def breaks(stage: Stage) -> tuple[list[Row], dict[str, object]]:
        raise EngineFailed("a long log\nno memory")

    def works(stage: Stage) -> tuple[list[Row], dict[str, object]]:
        return [row.measured(Estimate(1, 1, 1)) for row in rows(stage.sizes)], {"ms": [1]}

    parts = {"first": Part("first", rows, breaks), "second": Part("second", rows, works)}
    monkeypatch.setattr(program, "PARTS", parts)
    with pytest.raises(typer.Exit):
        program.main(only=["first", "second"], rehearse=True, out=tmp_path / "result")
    assert "this, ms: failed, at most 2: no memory" in capsys.readouterr().out
    failed, answered = (tmp_path / "result.md").read_text().splitlines()[2:4]
    assert "failed" in failed and "1.000 (1.000 to 1.000)" in answered


@pytest.mark.parametrize("sizes", [H200, TINY], ids=["h200", "tiny"])
def test_prefixes_are_left_at_the_first_scale_and_reused_at_the_second(sizes: Sizes) -> None:
    lengths = deployment(sizes).scale_set.lengths
    assert sizes.reused % sizes.block_size == 0
    assert sizes.reused + 8 + 1 <= lengths[0] < sizes.reused + sizes.asked + 1 <= lengths[1]
    assert all(case.prompt_tokens + case.new_tokens <= sizes.throughput_trained for case in sizes.cases)


def test_both_engines_differ_in_nothing_but_how_positions_are_rotated() -> None:
    shared, ours, stock = H200.throughput_arguments, sides.our_arguments(H200, "pin"), sides.stock_arguments(H200)
    assert {key: ours[key] for key in shared} == {key: stock[key] for key in shared} == shared
    assert ours.keys() - stock.keys() == {"additional_config", "kv_transfer_config", "worker_extension_cls"}
    assert ours["max_model_len"] == stock["max_model_len"] == SCALES[-1] * H200.throughput_trained
    assert stock["hf_overrides"]["rope_parameters"]["factor"] == SCALES[-1]


class FakeProcess:
    """An engine that answers at once; ours twice as fast as the other."""

    def __init__(self, model: pathlib.Path, arguments: dict[str, Any], *, plugins: str, **_: Any) -> None:
        self._is_ours = plugins == "posenc"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, prompts: list[list[int]], max_tokens: int) -> Batch:
        return Batch(
            seconds=1.0 if self._is_ours else 2.0,
            prompt_tokens=sum(map(len, prompts)),
            cached_tokens=0,
            generated_tokens=len(prompts) * max_tokens,
            scales=[1.0] if self._is_ours else [],
        )

    def cpu_seconds(self) -> float:
        return 0.0

    def wait_until_idle(self) -> float:
        return 0.0


def test_attention_that_rotates_is_measured_over_tables_and_is_asked_for_on_a_gpu_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def process(model: pathlib.Path, arguments: dict[str, Any], *, plugins: str, **_: Any) -> FakeProcess:
        assert plugins == "posenc"
        made.append(arguments["additional_config"]["posenc_attention"]["fused_rotary"])
        return FakeProcess(model, arguments, plugins=plugins)

    monkeypatch.setattr(sides, "EngineProcess", process)
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: True)
    for is_rehearsal in (False, True):
        rows, _ = sides.FUSED.measure(Stage(TINY, tmp_path, tmp_path, is_rehearsal=is_rehearsal))
        assert [row.value for row in rows] == [Estimate(1, 1, 1)] * len(TINY.cases)
        assert all(row.is_reached for row in rows)
    assert made == ["on", "off", "auto", "off"]


@pytest.mark.parametrize("part", [sides.PINNED, sides.MAY_CROSS], ids=["pinned", "may-cross"])
def test_throughput_is_ours_over_that_of_stock_vllm(
    part: Part, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sides, "EngineProcess", FakeProcess)
    rows, samples = part.measure(Stage(TINY, tmp_path, tmp_path))
    assert [(row.name, row.quantity) for row in rows] == [(row.name, row.quantity) for row in part.rows(TINY)]
    assert [row.value for row in rows] == [Estimate(2, 2, 2)] * len(TINY.cases)
    assert {row.is_reached for row in rows} == {True if part is sides.PINNED else None}
    assert len(samples["cases"]) == len(TINY.cases)


def test_two_engines_of_the_shape_of_llama_3_8b_fit_side_by_side() -> None:
    weights = 2 * 8.1e9
    for arguments in (H200.crossing_arguments, H200.throughput_arguments):
        assert 2 * (weights + arguments["kv_cache_memory_bytes"]) < 2 * 0.4 * 139 * 2**30


def test_a_streams_gaps_are_those_that_a_stretch_of_time_touches() -> None:
    async def gaps() -> list[float]:
        async with httpx.AsyncClient() as http:
            return Stream(http, [], 1, times=[0.0, 1.0, 3.0, 6.0, 10.0, 15.0]).gaps(1.5, 7.0)

    assert asyncio.run(gaps()) == [2.0, 3.0, 4.0]


def test_a_rehearsal_does_not_judge() -> None:
    row = Row("this", "ms", at_most(2)).measured(Estimate(1, 1, 1))
    assert "1 of 1 targets reached." in report.remarks([row], H200, is_rehearsal=False)
    said = report.remarks([row], TINY, is_rehearsal=True)
    assert len(said) == 1 and "Nothing here is a measurement." in said[0]
