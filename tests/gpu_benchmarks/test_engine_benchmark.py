"""The parts of the engine's benchmark for a GPU that need no engine."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
import time
import types
from typing import Any, ClassVar, Self

import httpx
import pytest
import torch
import typer

from posenc_runtime.vllm_adapter.settings.arguments import engine_args
from tests.benchmarks.engine_process import Batch, EngineFailed, EngineProcess
from tests.benchmarks.gpu.rows import Row, at_most
from tests.benchmarks.gpu_engine import __main__ as program
from tests.benchmarks.gpu_engine import part, report, sides
from tests.benchmarks.gpu_engine.part import Found, Part, Stage
from tests.benchmarks.gpu_engine.served import Noticed
from tests.benchmarks.gpu_engine.sizes import FULL, SCALES, TINY, Sizes, full
from tests.benchmarks.gpu_engine.stepped import deployment
from tests.benchmarks.gpu_engine.stream import Stream
from tests.benchmarks.intervals import Estimate
from tests.benchmarks.throughput import Invalid

CLIENT = httpx.AsyncClient()  # that nothing is asked of


def test_without_a_gpu_every_row_is_listed_with_the_reason_and_nothing_is_written(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    program.main(out=tmp_path / "result")
    printed = capsys.readouterr().out
    rows = [row for name in program.USUAL for row in program.PARTS[name].rows(FULL)]
    assert len(rows) == 12
    for row in rows:
        assert f"- {row.name}, {row.quantity}: needs an NVIDIA GPU, and torch finds none\n" in printed
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_part_is_refused_by_name() -> None:
    with pytest.raises(typer.BadParameter, match=r"must be one of stepped, .*, got crossing"):
        program.main(only=["crossing"])


def two_rows(sizes: Sizes) -> list[Row]:
    return [Row("this", "ms", at_most(2)), Row("that", "ms")]


def works(stage: Stage) -> Found:
    yield [row.measured(Estimate(1, 1, 1)) for row in two_rows(stage.sizes)], {"ms": [1]}


def written(place: pathlib.Path) -> list[tuple[str, str]]:
    """State and reason of all rows."""
    return [(row["state"], row["why"]) for row in json.loads(place.with_suffix(".json").read_text())["rows"]]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (EngineFailed("a long log\nno memory"), "no memory"),
        (ValueError("nobody thought of it"), "ValueError: nobody thought of it"),
    ],
)
def test_a_part_that_fails_leaves_what_it_measured_and_the_next_one_runs(
    error: Exception,
    why: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "result"

    def breaks(stage: Stage) -> Found:
        assert written(place) == [("not run", "")] * 4
        yield [two_rows(stage.sizes)[0].measured(Estimate(3, 3, 3))], {"ms": [3]}
        assert written(place) == [("measured", ""), *[("not run", "")] * 3]
        raise error

    parts = {"first": Part("first", two_rows, breaks), "second": Part("second", two_rows, works)}
    monkeypatch.setattr(program, "PARTS", parts)
    with pytest.raises(typer.Exit):
        program.main(only=["first", "second"], rehearse=True, out=place)
    said = capsys.readouterr()
    assert f"that, ms: failed: {why}" in said.out and "Traceback (most recent call last)" in said.err
    assert written(place) == [("measured", ""), ("failed", why), ("measured", ""), ("measured", "")]
    assert json.loads((tmp_path / "result.json").read_text())["samples"] == {
        "first": {"ms": [3]},
        "second": {"ms": [1]},
    }


def test_what_there_is_no_time_for_is_not_begun_and_listed_with_the_reason(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()

    def takes_long(stage: Stage) -> Found:
        yield [two_rows(stage.sizes)[0].measured(Estimate(3, 3, 3))], {}
        monkeypatch.setattr(part, "time", types.SimpleNamespace(monotonic=lambda: now + 1000))

    parts = {"first": Part("first", two_rows, takes_long), "second": Part("second", two_rows, works)}
    monkeypatch.setattr(program, "PARTS", parts)
    program.main(only=["first", "second"], limit=700, rehearse=True, out=tmp_path / "result")
    assert written(tmp_path / "result") == [("measured", ""), *[("not run", "the run had its 700 s")] * 3]
    assert "Not run:\n\n- that, ms: the run had its 700 s" in capsys.readouterr().out


def test_an_engine_is_waited_for_until_shortly_after_the_end() -> None:
    stage = Stage(TINY, pathlib.Path(), pathlib.Path(), end=time.monotonic() + 30)
    assert 40 < stage.patience() <= 50 and stage.goes_on()
    assert dataclasses.replace(stage, end=time.monotonic() - 60).patience() == 1
    assert dataclasses.replace(stage, end=math.inf).patience() == 300


def test_an_engine_that_does_not_answer_is_killed_and_the_end_of_its_log_is_told(tmp_path: pathlib.Path) -> None:
    patience = iter([60.0, 1.0, 60.0])  # until it has started, and until it answers
    silent = EngineProcess(
        tmp_path,
        {},
        worker_cores=[],
        plugins="",
        log=tmp_path / "log",
        worker="tests.silent_worker",
        patience=lambda: next(patience),
    )
    with silent as engine:
        (process,) = engine._family()
        with pytest.raises(EngineFailed, match=r"nothing is wrong\nthe engine must answer within 1 s and did not"):
            engine.run([[1] * 100_000], 1)  # longer than what a pipe holds
        process.wait(timeout=30)  # raises where it has not ended: what was killed does so in its own time
        with pytest.raises(EngineFailed, match=r"the engine ended early; its log ends with\nnothing is wrong$"):
            engine.run([[1]], 1)


@pytest.mark.parametrize("sizes", [FULL, TINY], ids=["full", "tiny"])
def test_prefixes_are_left_at_the_first_scale_and_reused_at_the_second(sizes: Sizes) -> None:
    lengths = deployment(sizes).scale_set.lengths
    assert sizes.reused % sizes.block_size == 0
    assert sizes.reused + 8 + 1 <= lengths[0] < sizes.reused + sizes.asked + 1 <= lengths[1]
    assert all(case.prompt_tokens + case.new_tokens <= sizes.throughput_trained for case in sizes.cases)


@pytest.mark.parametrize("gigabytes", [80, 141], ids=["h100", "h200"])
def test_weights_and_caches_of_two_engines_fit_a_gpu(gigabytes: int) -> None:
    weights = 2 * 8.03e9  # of Llama-3-8B, two bytes each
    caches = full(gigabytes * 10**9).throughput_arguments["kv_cache_memory_bytes"]
    assert 2 * (weights + caches) < 0.9 * gigabytes * 1e9


def test_a_large_gpu_and_a_list_without_one_leave_no_size_out() -> None:
    assert full(141 * 10**9) == full(0) == FULL


def test_both_engines_differ_in_nothing_but_how_positions_are_rotated() -> None:
    shared, ours, stock = FULL.throughput_arguments, sides.our_arguments(FULL, "pin"), sides.stock_arguments(FULL)
    assert {key: ours[key] for key in shared} == {key: stock[key] for key in shared} == shared
    assert ours.keys() - stock.keys() == {"additional_config", "kv_transfer_config", "worker_extension_cls"}
    assert ours["max_model_len"] == stock["max_model_len"] == SCALES[-1] * FULL.throughput_trained
    assert stock["hf_overrides"]["rope_parameters"]["factor"] == SCALES[-1]


class FakeProcess:
    """An engine that answers at once; ours twice as fast as the other."""

    runs: ClassVar[dict[str, Any]] = {"async_scheduling": True}

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


def test_attention_that_rotates_is_compared_to_tables_and_asked_for_only_on_a_gpu(
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
        rows, _ = all_of(sides.FUSED, Stage(TINY, tmp_path, tmp_path, is_rehearsal=is_rehearsal))
        assert [row.value for row in rows] == [Estimate(1, 1, 1)] * len(TINY.cases)
        assert all(row.is_reached for row in rows)
    assert made == ["on", "off", "auto", "off"]


@pytest.mark.parametrize("part", [sides.PINNED, sides.MAY_CROSS], ids=["pinned", "may-cross"])
def test_throughput_is_ours_over_that_of_stock_vllm(
    part: Part, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sides, "EngineProcess", FakeProcess)
    rows, samples = all_of(part, Stage(TINY, tmp_path, tmp_path))
    assert [(row.name, row.quantity) for row in rows] == [(row.name, row.quantity) for row in part.rows(TINY)]
    assert [row.value for row in rows] == [Estimate(2, 2, 2)] * len(TINY.cases)
    assert {row.is_reached for row in rows} == {True if part is sides.PINNED else None}
    assert list(samples) == [case.name for case in TINY.cases]
    assert all(sampled["runs"] == FakeProcess.runs for sampled in samples.values())


def all_of(part: Part, stage: Stage) -> tuple[list[Row], dict[str, Any]]:
    """Rows and samples of a whole part."""
    rows: list[Row] = []
    samples: dict[str, Any] = {}
    for some, sampled in part.measure(stage):
        rows += some
        samples |= sampled
    return rows, samples


@pytest.mark.parametrize(
    ("error", "why", "starts"),
    [
        (Invalid("32 prompt tokens came from the prefix cache"), "32 prompt tokens came from the prefix cache", 2),
        (EngineFailed("a long log\nno memory"), "no memory", 4),
    ],
)
def test_a_case_that_fails_fails_alone_and_engines_that_ended_are_started_again(
    error: Exception, why: str, starts: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    class Failing(FakeProcess):
        def __init__(self, model: pathlib.Path, arguments: dict[str, Any], *, log: pathlib.Path, **others: Any) -> None:
            started.append(log.name)
            super().__init__(model, arguments, **others)

        def run(self, prompts: list[list[int]], max_tokens: int) -> Batch:
            if (len(prompts), max_tokens) == (2, TINY.decode_tokens):
                raise error
            return super().run(prompts, max_tokens)

    monkeypatch.setattr(sides, "EngineProcess", Failing)
    rows, samples = all_of(sides.PINNED, Stage(TINY, tmp_path, tmp_path))
    assert [row.state for row in rows] == ["measured", "failed", "measured", "measured"]
    assert rows[1].why == why and len(samples) == 3
    assert len(set(started)) == len(started) == starts


def test_engines_that_vllm_does_not_run_alike_are_not_compared(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InStep(FakeProcess):
        def __init__(self, model: pathlib.Path, arguments: dict[str, Any], *, plugins: str, **others: Any) -> None:
            super().__init__(model, arguments, plugins=plugins, **others)
            self.runs = {"async_scheduling": plugins == ""}  # type: ignore[misc]

    monkeypatch.setattr(sides, "EngineProcess", InStep)
    rows, samples = all_of(sides.MAY_CROSS, Stage(TINY, tmp_path, tmp_path))
    assert samples == {} and {row.state for row in rows} == {"failed"}
    assert "must run both engines alike, got {'async_scheduling': False} and" in rows[0].why


def test_pairs_are_begun_until_the_time_is_over_and_those_that_were_are_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ticking(FakeProcess):
        now = 0.0

        def run(self, prompts: list[list[int]], max_tokens: int) -> Batch:
            Ticking.now += 1.0
            return super().run(prompts, max_tokens)

    monkeypatch.setattr(sides, "EngineProcess", Ticking)
    monkeypatch.setattr(part, "time", types.SimpleNamespace(monotonic=lambda: Ticking.now))
    # A pair takes two seconds, and the first one warms up.
    rows, _ = all_of(sides.PINNED, Stage(dataclasses.replace(TINY, pairs=3), tmp_path, tmp_path, end=6.0))
    assert [row.remark for row in rows] == ["8 and 4 tokens/s, 2 of 3 pairs"]


def test_two_engines_of_the_shape_of_llama_3_8b_fit_side_by_side() -> None:
    weights = 2 * 8.1e9
    for arguments in (FULL.crossing_arguments, FULL.throughput_arguments):
        assert 2 * (weights + arguments["kv_cache_memory_bytes"]) < 2 * 0.4 * 139 * 2**30


def test_graphs_hold_a_step_of_all_requests_and_the_tokens_behind_a_reused_prefix() -> None:
    captured = FULL.crossing_arguments["cudagraph_capture_sizes"]
    assert {FULL.others, FULL.others + 1, FULL.asked} <= set(captured) and captured == sorted(set(captured))
    assert max(captured) >= FULL.asked + FULL.others


def test_one_slow_step_shows_in_what_the_others_notice() -> None:
    crossing = noticed(slow=0.050)
    assert 8 * 40 <= len(crossing.gaps) <= 8 * 42
    assert crossing.p99 == pytest.approx(0.050, abs=1e-4) and crossing.longest_over_median == pytest.approx(
        10, rel=0.01
    )
    usual = noticed(slow=0.005)
    assert usual.p99 == pytest.approx(0.005, abs=1e-4) and usual.longest_over_median == pytest.approx(1, rel=0.01)


def noticed(slow: float) -> Noticed:
    """Steps of 5 ms, but for the one in which the long request crosses; pieces of the others come a little later."""
    steps = [0.005] * (FULL.before + FULL.after + 10)
    steps[4 + FULL.before] = slow  # the others are there for four steps more
    times = list(itertools.accumulate(steps, initial=0.0))
    said = range(1, FULL.before + FULL.after + 1)
    long = Stream(CLIENT, [], 0, times=times[4 : 4 + len(said)], said=list(said))
    others = [Stream(CLIENT, [], 0, times=[time + 1e-5 * number for time in times]) for number in range(FULL.others)]
    return Noticed.by(others, long, FULL)


def test_tokens_that_come_in_one_piece_are_said_at_its_time() -> None:
    stream = Stream(CLIENT, [], 0, times=[1.0, 2.0, 3.0], said=[1, 4, 5])
    assert [stream.when(tokens) for tokens in range(1, 6)] == [1.0, 2.0, 2.0, 2.0, 3.0]


def test_a_streams_gaps_are_those_that_a_stretch_of_time_touches() -> None:
    assert Stream(CLIENT, [], 1, times=[0.0, 1.0, 3.0, 6.0, 10.0, 15.0]).gaps(1.5, 7.0) == [2.0, 3.0, 4.0]


def test_a_rehearsal_does_not_judge() -> None:
    row = Row("this", "ms", at_most(2)).measured(Estimate(1, 1, 1))
    assert "1 of 1 targets reached." in report.remarks([row], FULL, is_rehearsal=False)
    said = report.remarks([row], TINY, is_rehearsal=True)
    assert len(said) == 1 and "Nothing here is a measurement." in said[0]
