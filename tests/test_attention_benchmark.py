"""The benchmark of attention: that it times what it should, in turns, and says what came of it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import struct
import warnings
from typing import Literal

import pytest
import torch

from tests.benchmarks import attention, attention_check
from tests.benchmarks.attention_rivals import STOCK, Rival, rivals
from tests.benchmarks.attention_step import Layer, Step, Work
from tests.benchmarks.attention_times import Timed

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


def timed(context: int, *, kind: Literal["decode", "prefill"] = "decode", **over_stock: float) -> Timed:
    seconds = {STOCK: [0.001, 0.002]} | {name: [0.001 * times, 0.002 * times] for name, times in over_stock.items()}
    return Timed(SMALL, Work(kind, context), 4, seconds, kernels={"vLLM": "its vec kernel, AVX2", "ours": "AVX-512"})


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
