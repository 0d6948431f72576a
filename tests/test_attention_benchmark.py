"""The benchmark of attention: that it times what it should, in turns, and says what came of it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import platform
import struct
import warnings
from typing import Literal

import pytest
import torch

from tests.benchmarks import attention, attention_check, record
from tests.benchmarks.attention_kernels import kernels_of
from tests.benchmarks.attention_rivals import STOCK, Rival, rivals
from tests.benchmarks.attention_step import SHARED, Layer, Step, Work
from tests.benchmarks.attention_targets import verdicts
from tests.benchmarks.attention_times import Timed, growth_table, layers_of, measure, ratios_table

SMALL = Layer(torch.float32, num_heads=2, num_kv_heads=1, head_dim=32, block_size=32)


@pytest.fixture(scope="module")
def vllm() -> None:
    """Imported, with the warnings that its dependencies raise meanwhile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm.v1.attention.backends.cpu_attn  # noqa: F401
        from vllm.platforms import current_platform
    if not current_platform.is_cpu():
        pytest.skip("times vLLM's attention for CPUs, which only its CPU build has")


def test_attentions_take_turns_over_all_layers_and_the_order_alternates() -> None:
    calls: list[tuple[str, int]] = []

    def rival(name: str) -> Rival:
        nothing = torch.empty(0)
        return Rival(name, lambda layer: calls.append((name, layer)), nothing, nothing, lambda *tensors: nothing)

    seconds = measure([rival("a"), rival("b")], 2, rounds=2, warm_ups=1, advance=lambda: None)
    assert calls == [(name, layer) for name in "baabba" for layer in range(2)]
    assert {name: len(samples) for name, samples in seconds.items()} == {"a": 2, "b": 2}


def test_a_decode_sample_reads_more_than_a_processor_keeps_and_a_prefill_one_layer() -> None:
    work = Work("decode", 1024, batch=3)
    assert work.cache_bytes(SMALL) == 3 * 1024 * 2 * 32 * 4
    assert layers_of(SMALL, work) * work.cache_bytes(SMALL) >= 2**28
    assert layers_of(SMALL, Work("prefill", 1024)) == 1


@pytest.mark.usefixtures("vllm")
def test_all_attentions_compute_what_their_references_do() -> None:
    attention_check.check(SMALL, (0.5, 0.05))


@pytest.mark.usefixtures("vllm")
def test_an_attention_that_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_alibi(step: Step, num_layers: int, gates: list[float]) -> list[Rival]:
        stock, alibi, *_ = rivals(step, num_layers, gates)
        return [dataclasses.replace(alibi, reference=stock.reference)]

    monkeypatch.setattr(attention_check, "rivals", without_alibi)
    with pytest.raises(attention_check.Wrong, match="vLLM, ALiBi, 2 heads to 1 of 32, float32, 1,100 tokens: off by"):
        attention_check.check(SMALL, (0.5,))


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("gate", [0.5, 0.05, 0.01])
def test_the_gates_of_cope_have_the_mean_that_its_name_says(gate: float) -> None:
    layer = Layer(torch.float32)
    step = Step(layer, Work("decode", 2000))
    cope = rivals(step, 1, (gate,))[-1]
    assert cope.name == f"CoPE, gates of {gate:g}"
    scores = torch.einsum("hd,khd->hk", cope.query[0], step.keys[0]) * layer.scale
    # A query's length is the spread of its scores, and 8 queries are few.
    assert scores.sigmoid().mean().item() == pytest.approx(gate, rel=0.1)


def test_a_query_that_moves_nothing_leaves_the_scores_as_they_are() -> None:
    step = Step(SMALL, Work("decode", 64))
    assert torch.all(step.keys[..., 0] == SHARED)
    moved = (step.query(3.0) - step.query()) @ step.keys[0, :, 0].T * SMALL.scale
    torch.testing.assert_close(moved, torch.full_like(moved, 3.0))


def timed(context: int, *, kind: Literal["decode", "prefill"] = "decode", **over_stock: float) -> Timed:
    seconds = {STOCK: [0.001, 0.002]} | {name: [0.001 * times, 0.002 * times] for name, times in over_stock.items()}
    return Timed(SMALL, Work(kind, context), 4, seconds, kernels={"vLLM": "its vec kernel, AVX2", "ours": "AVX-512"})


def test_attention_tables_have_a_row_for_each_attention_and_a_column_for_each_step() -> None:
    steps = [timed(1000, ours=1.5), timed(2000, ours=0.5)]
    assert ratios_table(steps).rows[1] == ("ours", "1.50 (1.50 to 1.50)", "0.50 (0.50 to 0.50)")
    assert growth_table(steps).headings == ("attention", "1,000 tokens", "2,000 tokens")
    assert growth_table(steps).rows == ((STOCK, "1500.0", "750.0"), ("ours", "2250.0", "375.0"))


def test_captions_name_the_processor_and_what_both_kernels_were_compiled_for() -> None:
    for table in (ratios_table([timed(1000)]), growth_table([timed(1000)])):
        assert table.title.endswith(f"float32; {record.processor()}; vLLM: its vec kernel, AVX2, ours: AVX-512")


@pytest.mark.usefixtures("vllm")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names of instruction sets are those of x86")
def test_kernels_are_named_by_the_instructions_that_the_processor_has() -> None:
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    wide = "avx512f" in flags
    theirs = "AVX-512 with bfloat16" if "avx512_bf16" in flags else "AVX-512" if wide else "AVX2"
    assert kernels_of(SMALL) == {"vLLM": f"its vec kernel, {theirs}", "ours": "AVX-512" if wide else "AVX2"}


def test_targets_are_said_to_be_reached_or_where_they_are_missed() -> None:
    steps = [
        timed(1024, **{"bias (ALiBi)": 1.2, "bias, windowed": 1.4, "CoPE, gates of 0.5": 3.0}),
        timed(4096, **{"bias (ALiBi)": 1.4, "bias, windowed": 0.9, "CoPE, gates of 0.5": 1.9}),
        timed(4096, kind="prefill", **{"CoPE, gates of 0.5": 9.0}),
    ]
    assert verdicts(steps) == [
        "At most 2 times vLLM's time, CoPE at 4,096 tokens: reached, most is 1.90 "
        "(CoPE, gates of 0.5, float32, 4,096 tokens).",
        "At most 1.3 times vLLM's time, bias (ALiBi): missed in 1 of 2: bias (ALiBi), float32, 4,096 tokens (1.40).",
        "At most 1 times vLLM's time, bias, windowed from 4,096 tokens on: reached, most is 0.90 "
        "(bias, windowed, float32, 4,096 tokens).",
    ]
    assert verdicts([timed(1024, **{"CoPE, gates of 0.5": 3.0})]) == []


@pytest.mark.usefixtures("vllm")
def test_a_run_prints_and_writes_every_attention_at_every_step(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attention.main(
        context=[64, 128],
        prefill=[48],
        batch=2,
        heads=2,
        kv_heads=1,
        head_dim=32,
        dtype=[attention.DType.bfloat16],
        gate=[0.5],
        num_layers=3,
        rounds=2,
        warm_ups=0,
        threads=None,
        out=tmp_path / "new" / "run",
    )
    printed = capsys.readouterr().out
    assert "64 tokens" in printed and "KV blocks that bias, windowed reads, bfloat16: " in printed
    steps = json.loads((tmp_path / "new" / "run.json").read_text())["steps"]
    assert [(step["work"]["kind"], step["work"]["context"]) for step in steps] == [
        ("decode", 64),
        ("decode", 128),
        ("prefill", 48),
    ]
    assert all(step["num_layers"] == 3 for step in steps)
    names = ["vLLM", "vLLM, ALiBi", "bias (ALiBi)", "bias, windowed", "CoPE, gates of 0.5"]
    assert all(list(step["seconds"]) == names for step in steps)
    assert all(len(samples) == 2 for step in steps for samples in step["seconds"].values())
    assert all(step["kernels"].keys() == {"vLLM", "ours"} for step in steps)
    markdown = (tmp_path / "new" / "run.md").read_text()
    assert markdown.count("| vLLM, ALiBi") == 3 and "python -m tests.benchmarks.attention" in markdown
    header = (tmp_path / "new" / "run.png").read_bytes()[:24]
    assert struct.unpack(">II", header[16:24]) == (500, 500)
