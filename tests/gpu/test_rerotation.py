"""Re-rotation, row look-up and key norms on a GPU, against float64 and the references."""

from __future__ import annotations

import pytest
import torch

from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention.window import record_key_norms
from posenc_runtime.kernels.rotary import reference
from tests.gpu.moved import DEVICE, fields_on_gpu, on_gpu
from tests.kernels import own_scale_cases
from tests.kernels.rerotate_cases import CASES
from tests.tolerance import SOME_FLOAT32_OPERATIONS


@pytest.mark.parametrize("name", CASES)
def test_keys_are_turned_to_the_new_scale_and_nothing_else_changes(name: str) -> None:
    case = CASES[name]
    before = case.memory()
    after = [on_gpu(of_layer) for of_layer in before]
    ops.rerotate(case.caches(after), fields_on_gpu(case.moves()), case.change(), fields_on_gpu(case.layout()))
    assert case.faults(before, [of_layer.cpu() for of_layer in after]) == []


@pytest.mark.parametrize("name", own_scale_cases.CASES)
def test_own_scales_grow_where_a_turned_key_needs_it(name: str) -> None:
    case = own_scale_cases.CASES[name]
    before = case.memory()
    after = [on_gpu(of_layer) for of_layer in before]
    ops.rerotate(case.caches(after), fields_on_gpu(case.moves()), case.change(), fields_on_gpu(case.layout()))
    assert case.faults(before, [of_layer.cpu() for of_layer in after]) == []


@pytest.mark.parametrize("num_tokens", [1, 255, 257, 8192])
def test_rows_are_those_of_the_reference(num_tokens: int) -> None:
    draw = torch.Generator().manual_seed(0)
    positions = torch.randint(0, 4096, (num_tokens,), generator=draw)
    slots = torch.randint(-1, 40 * 16, (num_tokens,), generator=draw)
    offsets = torch.randint(0, 3, (40,), generator=draw) * 512
    found, expected = torch.empty_like(positions, device=DEVICE), torch.empty_like(positions)
    ops.rope_rows(positions.to(DEVICE), slots.to(DEVICE), offsets.to(DEVICE), 16, found)
    reference.rope_rows(positions, slots, offsets, 16, expected)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_norms_are_the_running_maximum_of_their_block(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    norms = torch.zeros(64, 8, 16)
    on_device = norms.to(DEVICE)
    for slots in (torch.arange(100, 700), torch.arange(700, 701), torch.arange(0, 16)):
        keys = torch.randn(len(slots), 8, 128, generator=draw).to(dtype)
        record_key_norms(norms, keys, slots)
        ops.record_key_norms(on_device, keys.to(DEVICE), slots.to(DEVICE))
    torch.testing.assert_close(on_device.cpu(), norms, rtol=SOME_FLOAT32_OPERATIONS, atol=0)
