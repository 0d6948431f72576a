"""The benchmark of kernels on a GPU, where there is none: every row's code runs, and nothing is said to be measured."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import pathlib
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import typer

from posenc_runtime.encodings.distance import Linear
from posenc_runtime.kernels import attention_reference, ops
from posenc_runtime.kernels.paged import PagedBatch
from posenc_runtime.vllm_adapter.attention.choice import AttentionChoice
from tests.benchmarks.gpu import __main__ as program
from tests.benchmarks.gpu import bias, compiled, device, peers, report, timing, worker
from tests.benchmarks.gpu.compiled import Compiled
from tests.benchmarks.gpu.rows import Row, State, at_least, at_most
from tests.benchmarks.gpu.sizes import H200, TINY
from tests.benchmarks.gpu.timing import WallClock
from tests.benchmarks.gpu.trial import Question, Rival, Stage, Timed, Times, faster, share_of_copy, slower
from tests.benchmarks.gpu.trials import SUBJECTS, trials
from tests.benchmarks.gpu.worker import Worker
from tests.benchmarks.intervals import Estimate
from tests.unreliable_workers import mute, unreliable

KERNEL = Compiled("_rotary_store_kernel", registers=64, spills=0, num_warps=4, shared_bytes=2048)
SAID_BY_NVIDIA_SMI = "580.159.04, 143771, 345, 3201, 31, 77.15\n"
STAGE = Stage(torch.device("cpu"), WallClock(), TINY, rounds=2, warm_ups=0)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


# The program


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_every_row_is_listed_with_the_reason_and_nothing_is_written(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out=tmp_path / "result")
    printed = capsys.readouterr().out
    for row in rows_of(trials(H200)):
        assert f"- {row.name}, {row.quantity}: needs an NVIDIA GPU, and torch finds none\n" in printed
    assert list(tmp_path.iterdir()) == []


def test_another_gpu_than_the_one_that_the_targets_are_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    assert (
        device.missing() == "needs an NVIDIA H200, for which the targets are, and torch finds an NVIDIA H100 80GB HBM3"
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert device.missing() is None and device.short_name() == "h200"


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


def test_a_result_names_the_device_and_its_clocks_and_what_failed_ends_the_run_with_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "name", lambda: "NVIDIA H200")
    monkeypatch.setattr(device, "looked_at", lambda: device.read(SAID_BY_NVIDIA_SMI))

    def answered(asked: Sequence[Any], tell: worker.Tell, **options: Any) -> None:
        for trial in asked:
            tell(trial.name, None)
            first, *others = trial.rows
            measured = first.measured(Estimate(0.5, 0.4, 0.6), seconds=(1e-3,), moved=10**9, kernels=(KERNEL,))
            tell(trial.name, (measured, *(row.failed("on purpose") for row in others)))

    monkeypatch.setattr(worker, "run", answered)
    run(only=["copy"], out=tmp_path / "copied")
    with pytest.raises(typer.Exit):
        run(only=["rotary_store"], out=tmp_path / "rotated")
    written = json.loads((tmp_path / "rotated.json").read_text())
    assert written["device"]["GPU"] == "NVIDIA H200" and written["device"]["SM clock after"] == "345 MHz"
    assert written["rows"][0]["kernels"] == [dataclasses.asdict(KERNEL)] and written["rounds"] == 30
    markdown = (tmp_path / "rotated.md").read_text()
    assert " GiB, " in markdown
    assert "NVIDIA H200, driver 580.159.04, 143771 MiB of GPU memory, SM clock before 345 MHz" in markdown
    assert "Failed:\n\n- rotary_store, 8,192 tokens, times as fast as vLLM's" in markdown
    assert "0 of 1 targets reached that were measured." in markdown and f"; {KERNEL}" in markdown


def test_an_unknown_subject_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match=r"--only must be one of copy, rotary_store, .*, got rope"):
        run(only=["copy", "rope"])


def test_every_subject_can_be_asked_for_and_no_two_trials_share_a_name() -> None:
    for sizes in (H200, TINY):
        found = trials(sizes)
        assert {trial.subject for trial in found} == set(SUBJECTS)
        assert len({trial.name for trial in found}) == len(found)


def run(**arguments: Any) -> None:
    defaults = {"only": None, "rounds": None, "limit": 450.0, "trial_limit": 120.0, "rehearse": False, "out": None}
    program.main(**(defaults | arguments))


def rows_of(asked: Sequence[Any]) -> list[Row]:
    return [row for trial in asked for row in trial.rows]


# Workers


@dataclasses.dataclass(frozen=True)
class Named:
    """A trial of one row that nobody in this process answers."""

    name: str
    subject: str = "test"

    @property
    def rows(self) -> tuple[Row, ...]:
        return (Row(self.name, "number"),)


def answers(
    names: Sequence[str], limit: float = 60, trial_limit: float = 20, with_worker: Worker = unreliable
) -> list[Row]:
    found: list[Row] = []
    worker.run(
        [Named(name) for name in names],  # type: ignore[misc]
        lambda name, rows: found.extend(rows or ()),
        is_rehearsal=True,
        rounds=1,
        warm_ups=0,
        limit=limit,
        trial_limit=trial_limit,
        worker=with_worker,
    )
    return found


def test_a_trial_that_kills_its_process_fails_alone() -> None:
    first, second, third, last = answers(["a", "dies", "answers, then dies", "b"])
    assert (first.state, second.state, third.state, last.state) == ("measured", "failed", "measured", "measured")
    assert second.why == "its process ended (exit code 3)"


def test_a_trial_that_takes_too_long_is_given_up() -> None:
    hung, after = answers(["hangs", "a"], trial_limit=3)
    assert (hung.why, after.state) == ("given up after 3 s", "measured")


def test_when_the_time_is_over_what_is_left_has_failed() -> None:
    hung, after = answers(["hangs", "a"], limit=2)
    assert hung.why == after.why == "the run had its 2 s"


def test_a_worker_that_cannot_begin_is_not_started_forever() -> None:
    assert [row.why for row in answers(["a", "b"], with_worker=mute)] == ["its process ended (exit code 0)"] * 2


# Trials


def test_a_kernel_that_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unrotated(query: Any, key: Any, value: Any, kv_cache: Any, *others: Any) -> None: ...

    monkeypatch.setattr(ops, "rotary_store", unrotated)
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
        ),
    )


def trial_of(subject: str, part: str) -> Timed:
    """The first trial of a subject that names a part, or of ``rotary_store`` its prompt or its lone tokens."""
    found = [trial for trial in trials(TINY) if trial.subject == subject]
    trial = next(trial for trial in found if part in trial.name or (part == "prompt" and "lone" not in trial.name))
    assert isinstance(trial, Timed)
    return trial


# Counts, targets, and what is told of a missed one


def test_bytes_are_those_counted_by_hand() -> None:
    model = H200.model
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


def test_a_missed_target_is_told_with_what_the_compiler_made() -> None:
    row = Row("rotary_store", "share of copy bandwidth", at_least(0.8)).measured(
        Estimate(0.7, 0.69, 0.71), seconds=(50e-6,), moved=150_000_000, kernels=(KERNEL,)
    )
    assert row.is_reached is False
    assert report.missed_target(row) == (
        "rotary_store: 0.70 (0.69 to 0.71) share of copy bandwidth, at least 0.8; 50.0 µs a call; 3.00 TB/s; "
        "_rotary_store_kernel: 64 registers, 0 spilled, 4 warps, 2.0 KiB shared, occupancy 50%"
    )


@pytest.mark.parametrize(
    ("registers", "num_warps", "shared_bytes", "programs"),
    [
        (32, 4, 0, 16),  # all 64 warps
        (64, 4, 0, 8),  # 65,536 registers
        (255, 8, 0, 1),
        (40, 1, 0, 32),  # programs
        (40, 4, 100 * 1024, 2),  # shared memory
        (40, 4, 113 * 1024, 2),
        (40, 4, 114 * 1024, 1),
    ],
)
def test_as_many_programs_fit_as_the_scarcest_resource_allows(
    registers: int, num_warps: int, shared_bytes: int, programs: int
) -> None:
    assert Compiled("kernel", registers, 0, num_warps, shared_bytes).programs == programs


def test_what_a_launch_was_compiled_to_is_noted_once_and_the_kernel_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = types.SimpleNamespace(name="_rope_rows_kernel", num_warps=4, shared=16)
    handle = types.SimpleNamespace(metadata=about, n_regs=30, n_spills=0)

    class Kernel:
        def __getitem__(self, grid: object) -> Any:
            return lambda *arguments, **named: handle

    module = types.SimpleNamespace(_some_kernel=(kernel := Kernel()), launched=Kernel())
    monkeypatch.setattr(compiled, "_kernel_modules", lambda: [module])
    monkeypatch.setattr("triton.runtime.JITFunction", Kernel)
    with compiled.noted() as found:
        for _ in range(2):
            assert module._some_kernel[(1,)](1, BLOCK=2) is handle
    assert list(found.values()) == [Compiled("_rope_rows_kernel", 30, 0, 4, 16)]
    assert module._some_kernel is kernel


def test_all_kernels_are_found_that_are_launched() -> None:
    from triton.runtime import JITFunction

    found = {
        name
        for module in compiled._kernel_modules()
        for name, held in vars(module).items()
        if isinstance(held, JITFunction)
    }
    assert {"_rotary_store_kernel", "_rerotate_kernel", "_decode_kernel", "_prefill_kernel", "_plan_kernel"} <= found
    assert {"_merge_kernel", "_score_kernel", "_value_kernel"} <= found


def test_what_nvidia_smi_says_gets_its_units() -> None:
    assert device.read(SAID_BY_NVIDIA_SMI) == {
        "driver": "580.159.04",
        "GPU memory": "143771 MiB of GPU memory",
        "SM clock": "345 MHz",
        "memory clock": "3201 MHz",
        "temperature": "31 °C",
        "power": "77.15 W",
    }


# vLLM's kernels, called as on CUDA: what takes their place checks the call, and computes from what it was given


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported, with the warnings that its dependencies raise meanwhile, and wanted although nothing is on CUDA."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm._custom_ops
        import vllm.v1.attention.ops.triton_reshape_and_cache_flash
        import vllm.v1.attention.ops.triton_unified_attention  # noqa: F401
    monkeypatch.setattr(peers, "need_vllm", lambda stage: None)


def stored(signature: inspect.Signature) -> Any:
    """In place of an operator that caches keys and values."""

    def store(*arguments: Any) -> None:
        given = signature.bind(*arguments).arguments
        assert given["kv_cache_dtype"] == "auto"
        slots, block_size = given["slot_mapping"], given["key_cache"].shape[1]
        for rows, cache in ((given["key"], given["key_cache"]), (given["value"], given["value_cache"])):
            cache[slots // block_size, slots % block_size] = rows

    return store


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("kind", ["prompt", "lone"])
def test_vllms_rotation_and_store_are_called_so_that_they_do_what_ours_does(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm._custom_ops as operators
    import vllm.v1.attention.ops.triton_reshape_and_cache_flash as by_triton

    for module, name in ((operators, "reshape_and_cache_flash"), (by_triton, "triton_reshape_and_cache_flash")):
        monkeypatch.setattr(module, name, stored(inspect.signature(getattr(module, name))))
    rows = trial_of("rotary_store", kind).answer(STAGE)
    assert [(row.state, row.why) for row in rows] == [("measured", "")] * 3


class AttendingKernel:
    """In place of ``kernel_unified_attention``: attends to what it was given."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._signature = signature
        self.was_split: list[bool] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(**named: Any) -> None:
            given = self._signature.bind(**named).arguments
            self.was_split.append(given["IS_3D"])
            starts = given["query_start_len_ptr"]
            lengths = given["seq_lens_ptr"]
            batch = PagedBatch(given["block_tables_ptr"], starts, lengths, int(starts.diff().max()), int(lengths.max()))
            assert not given["USE_SOFTCAP"] and given["SLIDING_WINDOW"] == 0 and given["USE_CAUSAL"]
            keys, values = (given[f"{name}_cache_ptr"].transpose(1, 2) for name in ("key", "value"))
            attention_reference.bias_attention(
                given["query_ptr"],
                keys,
                values,
                batch,
                Linear(given["alibi_slopes_ptr"]),
                given["scale"],
                given["output_ptr"],
            )

        return launch


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(("kind", "is_split"), [("decode", True), ("prefill", False)])
def test_vllms_attention_is_called_so_that_it_does_what_ours_does(
    kind: str, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm.v1.attention.ops.triton_unified_attention as unified

    kernel = AttendingKernel(inspect.signature(unified.kernel_unified_attention))
    monkeypatch.setattr(unified, "kernel_unified_attention", kernel)
    reduced: list[dict[str, Any]] = []
    monkeypatch.setattr(unified, "reduce_segments", {(2, 4): lambda **named: reduced.append(named)})
    monkeypatch.setattr(
        unified, "triton", types.SimpleNamespace(next_power_of_2=lambda number: 1 << (number - 1).bit_length())
    )
    rows = trial_of("bias", kind).answer(STAGE)
    assert {(row.state, row.why) for row in rows} == {("measured", "")}
    assert set(kernel.was_split) == {is_split} and bool(reduced) is is_split


def test_a_vllm_that_cannot_be_imported_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    imported = builtins.__import__

    def without_vllm(name: str, *others: Any, **more: Any) -> Any:
        if name == "vllm":
            raise ImportError("No module named 'vllm'")
        return imported(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", without_vllm)
    on_gpu = types.SimpleNamespace(is_rehearsal=False)
    with pytest.raises(peers.NotHere, match="vLLM cannot be imported here: ImportError: No module named 'vllm'"):
        peers.need_vllm(on_gpu)  # type: ignore[arg-type]


def test_windows_leave_out_what_a_deployment_lets_them() -> None:
    assert AttentionChoice.window_tolerance == bias.TOLERANCE
