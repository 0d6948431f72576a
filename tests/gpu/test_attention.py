"""The attention kernels on a GPU, at the sizes that they are made for: dense float64 says what must come out."""

from __future__ import annotations

import pytest
import torch

from posenc_runtime.encodings.distance import on_device
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention.window import Window
from tests.gpu.moved import DEVICE, fields_on_gpu, on_gpu
from tests.kernels.attention_cases import BIAS_CASES, COPE_CASES, Case, Tensors

# Chunks, tiles and windows as they run, which the interpreter's cases are too short for.
LONG = ((5000, 1), (1, 1), (700, 700), (3000, 129), (257, 1))
HEADS = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "dtype": torch.bfloat16, "tokens_first": True}
LONG_BIAS_CASES = {
    f"long-{bias}{'-windowed' if tolerance else ''}": Case(LONG, bias=bias, tolerance=tolerance, **HEADS)  # type: ignore[arg-type]
    for bias, tolerance in (("linear", None), ("linear", 1e-3), ("power", 1e-3), ("log", 1e-3), ("table", None))
}
LONG_COPE_CASES = {
    f"long-gates-{name}": Case(LONG, bias="cope", npos=64, gates=gates, **HEADS)  # type: ignore[arg-type]
    for name, gates in (("half-open", 0.0), ("nearly-shut", -4.0))
}
BIASED = BIAS_CASES | LONG_BIAS_CASES
CONTEXTUAL = COPE_CASES | LONG_COPE_CASES


class OnGpu:
    """A case's tensors on the GPU; what a kernel writes there comes back to be judged."""

    def __init__(self, case: Case) -> None:
        self.tensors: Tensors = case.tensors()
        self.query, self.keys, self.values, self.out = (
            on_gpu(tensor)
            for tensor in (self.tensors.query, self.tensors.key_cache, self.tensors.value_cache, self.tensors.out)
        )
        self.batch = fields_on_gpu(case.batch())

    def faults(self) -> list[str]:
        self.tensors.out = self.out.cpu()
        return self.tensors.faults()


def biased(case: Case) -> OnGpu:
    run = OnGpu(case)
    window = None
    if case.tolerance is not None:
        counts = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        window = Window(on_gpu(run.tensors.key_norms), case.tolerance, counts)
    form = on_device(case.form(), run.query.device)
    ops.bias_attention(run.query, run.keys, run.values, run.batch, form, case.scale(), run.out, window)
    return run


def contextual(case: Case) -> OnGpu:
    run, cope = OnGpu(case), fields_on_gpu(case.cope())
    ops.cope_attention(run.query, run.keys, run.values, run.batch, cope, case.scale(), run.out)
    return run


@pytest.mark.parametrize("name", BIASED)
def test_biased_attention_is_no_worse_than_torch(name: str) -> None:
    assert biased(BIASED[name]).faults() == []


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_contextual_positions_are_no_worse_than_torch(name: str) -> None:
    assert contextual(CONTEXTUAL[name]).faults() == []


@pytest.mark.parametrize("name", ["long-linear", "long-linear-windowed"])
def test_a_step_gives_the_same_bits_again(name: str) -> None:
    assert torch.equal(biased(BIASED[name]).out, biased(BIASED[name]).out)


def test_lone_queries_can_be_replayed_from_a_graph() -> None:
    case = Case(((5000, 1), (700, 1), (33, 1)), tolerance=1e-3, **HEADS)  # type: ignore[arg-type]
    run, expected = OnGpu(case), biased(case).out
    window = Window(on_gpu(run.tensors.key_norms), 1e-3, torch.zeros(2, dtype=torch.int64, device=DEVICE))
    form = on_device(case.form(), run.query.device)

    def step() -> None:
        ops.bias_attention(run.query, run.keys, run.values, run.batch, form, case.scale(), run.out, window)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    run.out.zero_()
    graph.replay()
    assert torch.equal(run.out, expected)
