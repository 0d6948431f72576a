"""The benchmark of kernels on a GPU, rehearsed on the CPU: each row answers, counts bytes, and checks its kernel."""

from __future__ import annotations

import importlib.util
import json
import math
import pathlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch

from posenc_runtime.encodings.distance import Flat
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention import reference as attention_reference
from posenc_runtime.kernels.attention.paged import PagedBatch
from tests.benchmarks.gpu import __main__ as program
from tests.benchmarks.gpu import peers
from tests.benchmarks.gpu.checks import Wrong
from tests.benchmarks.gpu.compiled import noted
from tests.benchmarks.gpu.read_time import FarStep, at_read_time
from tests.benchmarks.gpu.rows import Row, State, at_least, at_most
from tests.benchmarks.gpu.sizes import FULL, TINY
from tests.benchmarks.gpu.timing import WallClock
from tests.benchmarks.gpu.trial import Stage
from tests.benchmarks.gpu.trials import trials

pytestmark = pytest.mark.slow

STAGE = Stage(torch.device("cpu"), WallClock(), TINY, rounds=2, warm_ups=0)
KERNELS = {
    "rotary_store": "rotary_store",
    "bias": "bias_attention",
    "cope": "cope_attention",
    "rerotate": "rerotate",
    "read_time": "read_time_attention",
}


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
    monkeypatch.setattr(ops, KERNELS[subject], lambda *arguments, **named: None)
    row = next(iter(next(trial for trial in trials(TINY) if trial.subject == subject).answer(STAGE)))
    assert row.state == State.failed and "Wrong: " in row.why and row.value is None


def test_positions_at_read_time_are_measured_with_rerope_s_own_defaults() -> None:
    setting = FarStep(STAGE, past=FULL.far_trained, new=1)
    assert [trial.name for trial in trials(FULL) if trial.subject == "read_time"] == [
        "ReRoPE, decode of 1 at 32,768 tokens past 32,768",
        "ReRoPE, decode of 1 at 131,072 tokens past 32,768",
        "ReRoPE, prefill of 8,192 tokens after 32,768",
    ]
    pages = setting.read_time().pages
    assert (pages.trained_length, pages.page, pages.window) == (64, 8, 32)


def test_a_prompt_s_outputs_between_those_that_are_compared_must_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    step = FarStep(STAGE, past=TINY.far_trained, new=150)
    assert step.rows.tolist() == [0, 127, 149]
    at_read_time(STAGE, step)
    whole = ops.read_time_attention

    def only_compared(*arguments: Any, **named: Any) -> None:
        whole(*arguments, **named)
        step.out[1:127] = math.nan

    monkeypatch.setattr(ops, "read_time_attention", only_compared)
    with pytest.raises(Wrong, match="126 of 150 outputs were not written"):
        at_read_time(STAGE, step)


def test_a_query_that_is_not_turned_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    step = FarStep(STAGE, past=TINY.far_trained + 39)
    unturned = step.expected_unturned
    monkeypatch.setattr(ops, "read_time_attention", lambda *_, **__: step.out.copy_(unturned))
    with pytest.raises(Wrong, match="an output is wrong by"):
        at_read_time(STAGE, step)


def test_flash_attention_is_called_as_vllm_documents_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over wrappers with the signatures of vLLM's own, which compute what their documentation says."""
    from vllm.v1.attention.backends import fa_utils

    calls: list[dict[str, Any]] = []

    def attend(**named: Any) -> None:
        calls.append(named)
        starts, lengths = named["cu_seqlens_q"], named["seqused_k"]
        batch = PagedBatch(named["block_table"], starts, lengths, named["max_seqlen_q"], named["max_seqlen_k"])
        keys, values = (named[name].transpose(1, 2) for name in "kv")
        form = Flat(named["q"].shape[1])
        attention_reference.bias_attention(named["q"], keys, values, batch, form, named["softmax_scale"], named["out"])

    schedule = torch.zeros(5, dtype=torch.int32)
    wrappers = {"flash_attn_varlen_func": attend, "get_scheduler_metadata": lambda **_: schedule}
    for name, computes in wrappers.items():
        like = create_autospec(getattr(flash_attn_interface(), name), side_effect=computes)
        monkeypatch.setattr(fa_utils, name, like, raising=False)
    monkeypatch.setattr(fa_utils, "get_flash_attn_version", lambda **_: 3)
    monkeypatch.setattr(peers, "need_vllm", lambda stage: None)
    asked = [trial for trial in trials(TINY) if trial.subject == "read_time"]
    assert {row.state for trial in asked for row in trial.answer(STAGE)} == {State.measured}
    assert all(call["fa_version"] == 3 and call["causal"] and call["window_size"] == [-1, -1] for call in calls)
    # the whole request by a schedule of its own, and in a layer of ours the step's tokens alone
    new, whole = TINY.prefill, TINY.far_trained + TINY.prefill
    of_prompt = [(int(call["seqused_k"]), call["scheduler_metadata"]) for call in calls if len(call["q"]) == new]
    assert {(length, given is schedule) for length, given in of_prompt} == {(whole, True), (new, False)}


def test_what_any_kernel_of_attention_was_compiled_to_is_noted() -> None:
    from tests.kernels.compile_attention import KERNELS

    before = {name: getattr(module, kernel) for name, (module, kernel) in KERNELS.items()}
    with noted():
        during = {name: getattr(module, kernel) for name, (module, kernel) in KERNELS.items()}
    assert not [name for name in KERNELS if during[name] is before[name]]
    assert before == {name: getattr(module, kernel) for name, (module, kernel) in KERNELS.items()}


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


def flash_attn_interface() -> ModuleType:
    """vLLM's module of FlashAttention's wrappers, without its package, which wants their compiled operators."""
    vllm = importlib.util.find_spec("vllm")
    assert vllm is not None and vllm.origin is not None
    place = pathlib.Path(vllm.origin).with_name("vllm_flash_attn") / "flash_attn_interface.py"
    spec = importlib.util.spec_from_file_location("flash_attn_interface", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(**arguments: Any) -> None:
    program.main(**arguments)


def rows_of(asked: Sequence[Any]) -> list[Row]:
    return [row for trial in asked for row in trial.rows]
