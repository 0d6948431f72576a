"""What is timed has been seen to compute what it should, and rivals take turns."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from posenc_runtime.kernels import ops
from tests.benchmarks.gpu import rerotate, timing
from tests.benchmarks.gpu.paged_step import PagedStep
from tests.benchmarks.gpu.rows import State, at_least
from tests.benchmarks.gpu.sizes import FULL, TINY
from tests.benchmarks.gpu.timing import WallClock
from tests.benchmarks.gpu.trial import Question, Rival, Stage, Timed, Times, faster, share_of_copy, slower
from tests.benchmarks.gpu.trials import trials

STAGE = Stage(torch.device("cpu"), WallClock(), TINY, rounds=2, warm_ups=0)


def test_a_kernel_that_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "rotary_store", lambda step: None)
    row = next(iter(trial_of("rotary_store", "prompt").answer(STAGE)))
    assert row.state == State.failed and row.why.startswith("rotary_store: Wrong: a rotated number is wrong by")
    assert row.value is None and row.seconds == ()


@pytest.mark.parametrize("subject", ["bias", "cope", "rerotate"])
def test_what_does_nothing_is_not_timed_either(subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bias_attention", "cope_attention", "rerotate"):
        monkeypatch.setattr(ops, name, lambda *arguments: None)
    row = next(iter(next(trial for trial in trials(TINY) if trial.subject == subject).answer(STAGE)))
    assert row.state == State.failed and "Wrong: " in row.why


def test_one_rival_that_fails_leaves_the_others_rows() -> None:
    def broken(stage: Stage, setting: None) -> Rival:
        raise RuntimeError("on purpose")

    def sound(stage: Stage, setting: None) -> Rival:
        return Rival(lambda layer: None, num_calls=2, moved=10)

    trial = Timed(
        "test",
        "test",
        lambda stage: None,
        {"copy": sound, "ours": sound, "theirs": broken},
        [share_of_copy("row", "ours"), faster("row", "ours", "theirs", at_least(1))],
    )
    share, speed = trial.answer(STAGE)
    assert share.state == State.measured and len(share.seconds) == len(share.others["copy"]) == 2
    assert speed.state == State.failed and speed.why == "theirs: RuntimeError: on purpose"


def test_rows_follow_from_times_round_by_round() -> None:
    ours, theirs = (
        Times(Rival(lambda layer: None, moved=moved), seconds)
        for moved, seconds in ((300, [1.0, 2.0]), (600, [1.5, 1.0]))
    )

    def values(question: Question) -> list[float]:
        return question.values(ours, theirs)

    assert values(share_of_copy("", "ours")) == [300 / 400, 150 / 600]
    assert values(faster("", "ours", "theirs")) == [1.5, 0.5]
    assert values(slower("", "ours", "theirs")) == [1 / 1.5, 2.0]


def test_rivals_take_turns_and_the_order_alternates() -> None:
    calls: list[str] = []
    works = {name: (lambda name=name: calls.append(name)) for name in "ab"}  # type: ignore[misc]
    seconds = timing.in_turns(works, WallClock(), rounds=2, warm_ups=1)
    assert "".join(calls) == "baabba"
    assert [len(samples) for samples in seconds.values()] == [2, 2]


def test_a_device_is_warmed_up_for_a_while_however_short_a_round_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ticking:
        now = 0.0

    class Clock(WallClock):
        def seconds(self, work: timing.Work) -> float:
            Ticking.now += 0.01
            return Ticking.now

    monkeypatch.setattr(timing, "time", types.SimpleNamespace(perf_counter=lambda: Ticking.now))
    seconds = timing.in_turns({"a": lambda: None}, Clock(), rounds=2, warm_ups=3, warm_seconds=0.3)
    assert seconds == {"a": [pytest.approx(0.31), pytest.approx(0.32)]}
    assert timing.in_turns({}, Clock(), rounds=2, warm_ups=3, warm_seconds=0.3) == {}


def test_work_that_waits_for_the_device_is_not_captured_and_torch_captures_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waits() -> None:
        raise RuntimeError("called a synchronizing CUDA operation")

    calls: list[str] = []
    monkeypatch.setattr(timing, "torch", pretended_cuda(calls))
    clock = timing.DeviceClock(64)
    assert not clock.can_capture(waits) and clock.can_capture(lambda: calls.append("work"))
    assert calls == ["error", "default", "error", "work", "default"]


def test_re_rotation_is_replayed_or_reported_as_launched_by_the_host() -> None:
    class Waited(WallClock):
        def can_capture(self, work: timing.Work) -> bool:
            return False

    trial = next(trial for trial in trials(TINY) if trial.subject == rerotate.SUBJECT)
    assert isinstance(trial, Timed)
    for clock, captured in ((WallClock(), {rerotate.IN_PLACE, rerotate.PARTLY, rerotate.COPIED}), (Waited(), set())):
        stage = dataclasses.replace(STAGE, clock=clock)
        request = trial.setting(stage)
        found = {name: enter(stage, request) for name, enter in trial.rivals.items()}
        assert {name for name, rival in found.items() if rival.is_captured} == captured
        said = {name for name, rival in found.items() if rival.remark.startswith("launched by the host")}
        assert said == {rerotate.IN_PLACE, rerotate.PARTLY, rerotate.COPIED} - captured


def test_a_lone_requests_step_goes_through_several_layers() -> None:
    assert FULL.lone_layers >= 8
    for batch, layers in ((1, TINY.lone_layers), (3, 1)):
        stage = dataclasses.replace(STAGE, sizes=dataclasses.replace(TINY, sample_bytes=1))
        assert len(PagedStep(stage, TINY.model, 33, batch).caches) == layers


def test_a_device_times_a_replay_with_cold_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(timing, "torch", pretended_cuda(calls))
    clock = timing.DeviceClock(64)
    replay = clock.prepare(lambda: calls.append("work"), is_captured=True)
    assert calls == ["work", "wait", "capture", "work", "captured"]
    calls.clear()
    assert clock.seconds(replay) == 0.002
    assert calls == ["flush", "record", "replay", "record", "wait"]
    assert clock.prepare(calls.clear, is_captured=False) == calls.clear


def pretended_cuda(calls: list[str]) -> Any:
    event = types.SimpleNamespace(
        record=lambda: calls.append("record"), synchronize=lambda: calls.append("wait"), elapsed_time=lambda other: 2.0
    )

    @contextlib.contextmanager
    def capture(graph: Any) -> Iterator[None]:
        calls.append("capture")
        yield
        calls.append("captured")

    return types.SimpleNamespace(
        ones=lambda *size, **options: types.SimpleNamespace(sum=lambda: calls.append("flush")),
        float32=None,
        cuda=types.SimpleNamespace(
            Event=lambda enable_timing: event,
            CUDAGraph=lambda: types.SimpleNamespace(replay=lambda: calls.append("replay")),
            graph=capture,
            synchronize=lambda: calls.append("wait"),
            set_sync_debug_mode=calls.append,
        ),
    )


def trial_of(subject: str, part: str) -> Timed:
    """The first trial of a subject that names a part, or of ``rotary_store`` its prompt or its lone tokens."""
    found = [trial for trial in trials(TINY) if trial.subject == subject]
    trial = next(trial for trial in found if part in trial.name or (part == "prompt" and "lone" not in trial.name))
    assert isinstance(trial, Timed)
    return trial
