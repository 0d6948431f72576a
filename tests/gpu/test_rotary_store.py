"""Rotation into the paged cache on a GPU, against exact angles in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from posenc_runtime.kernels import ops
from tests.gpu.moved import DEVICE, fields_on_gpu
from tests.kernels.rotary_store_cases import CASES, IN_ONE_PROGRAM, Case, Tensors

# A prompt's chunk of the shape of Llama 3 8B, far into a request; every ninth token is padding.
LONG = Case(
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rotary_dim=128,
    dtype=torch.bfloat16,
    positions=tuple(range(130_000, 130_700)),
    slots=tuple(-1 if token % 9 == 8 else 767 - token for token in range(700)),
    block_size=128,
    scale_block_size=128,
    packed=True,
    in_place=False,
)
ALL = CASES | {"long": LONG}


class OnGpu:
    """A case's step on the GPU; what a kernel writes there comes back to be judged."""

    def __init__(self, case: Case) -> None:
        self.tensors: Tensors = case.tensors()
        self.projected = self.tensors.projected.to(DEVICE)
        self.memory = self.tensors.memory.to(DEVICE)
        self.out = self.tensors.out.to(DEVICE)
        given = fields_on_gpu(self.tensors.step())
        query, key, value = self.tensors.split(self.projected)
        self.step = dataclasses.replace(
            given,
            query=query,
            key=key,
            value=value,
            kv_cache=self.tensors.cache_in(self.memory),
            scales=fields_on_gpu(given.scales),
            out=None if case.in_place else self.out,
        )

    def run(self) -> None:
        ops.rotary_store(self.step)

    def faults(self) -> list[str]:
        for here, there in (("projected", self.projected), ("memory", self.memory), ("out", self.out)):
            getattr(self.tensors, here).copy_(there)
        return self.tensors.faults()


@pytest.mark.parametrize("name", ALL)
def test_the_kernel_rotates_by_the_scale_of_each_block_and_writes_nothing_else(name: str) -> None:
    step = OnGpu(ALL[name])
    step.run()
    assert step.faults() == []


@pytest.mark.parametrize("name", IN_ONE_PROGRAM)
def test_a_program_goes_on_to_further_tiles_of_a_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posenc_runtime.kernels.rotary.rotary_store._PROGRAMS", 1)
    step = OnGpu(CASES[name])
    step.run()
    assert step.faults() == []


@pytest.mark.parametrize("name", ["out-of-place", "long"])
def test_a_replayed_graph_rotates_by_what_its_tables_say_then(name: str) -> None:
    case = ALL[name]
    step = OnGpu(case)
    step.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    step.memory.copy_(step.tensors.memory_before)
    step.out.zero_()
    positions = step.step.positions
    positions += 3  # in the graph's own memory, as vLLM writes a step's positions
    graph.replay()
    moved = tuple(position + 3 for position in case.positions)
    step.tensors.case = type(case)(**{**vars(case), "positions": moved})
    assert step.faults() == []
