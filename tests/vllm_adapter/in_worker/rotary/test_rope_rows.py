"""The operation by which the rotary embedding asks for rows: it finds the slots of the forward that it runs in."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from vllm import forward_context
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

from posenc_runtime.kernels import ops
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_worker.rotary import building, registration
from posenc_runtime.vllm_adapter.in_worker.rotary import rows as row_lookup
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE
from tests.tolerance import SOME_FLOAT32_OPERATIONS

POSITIONS = torch.tensor([3, 4, 0, 9])
SLOTS = torch.tensor([7, 8, 4, -1])  # of blocks 1, 2, 1 and of none


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    registration.register()
    monkeypatch.setattr(STATE, "block_row_offset", torch.tensor([0, 100, 500]))
    monkeypatch.setattr(STATE, "block_size", {"layer": 4})


def in_a_forward(monkeypatch: pytest.MonkeyPatch, slot_mapping: Any) -> None:
    context = types.SimpleNamespace(slot_mapping=slot_mapping, additional_kwargs={})
    monkeypatch.setattr(forward_context, "is_forward_context_available", lambda: True)
    monkeypatch.setattr(forward_context, "get_forward_context", lambda: context)


def rows(positions: torch.Tensor, room: torch.Tensor | None = None) -> list[int]:
    room = torch.full((6,), -1) if room is None else room
    torch.ops.vllm.posenc_rope_rows(positions, room)
    assert (room[len(positions) :] == -1).all()
    found: list[int] = room[: len(positions)].tolist()
    return found


def test_a_token_takes_the_row_of_its_position_at_the_scale_of_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_forward(monkeypatch, {"layer": SLOTS})
    assert rows(POSITIONS) == [103, 504, 100, 9]


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The positions of each look-up."""
    of_each, look_up = [], ops.rope_rows

    def counted(positions: torch.Tensor, *others: Any) -> None:
        of_each.append(positions.tolist())
        look_up(positions, *others)

    monkeypatch.setattr(ops, "rope_rows", counted)
    return of_each


def test_the_layers_of_a_forward_look_their_rows_up_once(
    looked_up: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = torch.full((6,), -1)
    in_a_forward(monkeypatch, {"layer": SLOTS})
    assert [rows(POSITIONS, room) for _ in range(3)] == [[103, 504, 100, 9]] * 3
    assert looked_up == [POSITIONS.tolist()]


def test_other_positions_and_rotary_embeddings_with_rows_of_their_own_look_up_theirs(
    looked_up: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = torch.full((6,), -1), torch.full((6,), -1)
    in_a_forward(monkeypatch, {"layer": SLOTS})
    assert rows(POSITIONS, one) == rows(POSITIONS, other) == [103, 504, 100, 9]
    assert rows(POSITIONS + 1, one) == [104, 505, 101, 10]
    assert rows(POSITIONS, one) == [103, 504, 100, 9]
    one[2:] = -1
    assert rows(POSITIONS[:2], one) == [103, 504]
    assert len(looked_up) == 5


def test_a_captured_graph_has_its_own_look_up_even_after_one_in_the_same_forward(
    looked_up: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = torch.full((6,), -1)
    in_a_forward(monkeypatch, {"layer": SLOTS})
    rows(POSITIONS, room)
    monkeypatch.setattr(row_lookup, "_is_capturing", lambda _: True)
    rows(POSITIONS, room)
    rows(POSITIONS, room)
    assert len(looked_up) == 2


def test_another_forward_has_slots_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    room = torch.full((6,), -1)
    in_a_forward(monkeypatch, {"layer": SLOTS})
    rows(POSITIONS, room)
    in_a_forward(monkeypatch, {"layer": SLOTS.flip(0)})
    assert rows(POSITIONS, room) == [3, 104, 500, 109]


def test_before_there_is_a_cache_rows_are_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_forward(monkeypatch, {"layer": SLOTS})
    monkeypatch.setattr(STATE, "block_row_offset", None)
    assert rows(POSITIONS) == POSITIONS.tolist()


def test_in_a_dummy_run_which_caches_nothing_rows_are_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_forward(monkeypatch, {})
    assert rows(POSITIONS) == POSITIONS.tolist()


def test_slots_of_which_nobody_knows_the_blocks_end_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_forward(monkeypatch, {"unknown": SLOTS})
    with pytest.raises(RuntimeError, match=r"got slots for \['unknown'\], registered are \['layer'\]"):
        rows(POSITIONS)


AXES = torch.tensor([[3, 4, 0, 9], [3, 5, 0, 9], [3, 7, 1, 9]])  # time, height and width


def test_each_axis_of_a_token_takes_the_row_of_its_own_position(
    looked_up: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = torch.full((3, 6), -1)
    in_a_forward(monkeypatch, {"layer": SLOTS})
    for _ in range(2):  # layers
        torch.ops.vllm.posenc_rope_rows(AXES, room)
    assert room.tolist() == [[103, 504, 100, 9, -1, -1], [103, 505, 100, 9, -1, -1], [103, 507, 101, 9, -1, -1]]
    assert looked_up == AXES.tolist()


def test_text_of_a_model_with_three_axes_has_one_row_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    room = torch.full((3, 6), -1)
    in_a_forward(monkeypatch, {"layer": SLOTS})
    torch.ops.vllm.posenc_rope_rows(POSITIONS, room)
    assert room.tolist() == [[103, 504, 100, 9, -1, -1], [-1] * 6, [-1] * 6]


def test_positions_of_several_sequences_have_their_rows_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    room = torch.full((6,), -1)
    in_a_forward(monkeypatch, {"layer": SLOTS})
    torch.ops.vllm.posenc_rope_rows(POSITIONS.view(2, 2), room)
    assert room.tolist() == [103, 504, 100, 9, -1, -1]


@pytest.mark.parametrize("axes", [1, 3])
def test_while_a_model_is_asked_tokens_take_the_rows_that_it_is_asked_with(
    axes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STATE, "asked_rows", torch.tensor([5, 600]))
    in_a_forward(monkeypatch, {})
    positions = torch.tensor([7, 7]) if axes == 1 else torch.full((axes, 2), 7)
    room = torch.full((4,), -1) if axes == 1 else torch.full((axes, 4), -1)
    torch.ops.vllm.posenc_rope_rows(positions, room)
    assert room.tolist() == ([5, 600, -1, -1] if axes == 1 else [[5, 600, -1, -1]] * axes)


@pytest.mark.parametrize("interleaved", [False, True], ids=["sections", "interleaved"])
def test_axes_rotate_at_the_scale_of_the_token_as_vllm_rotates_them_by_its_own_table(
    interleaved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linear scaling by 2 at even positions is stock vLLM at half of them."""
    halves = torch.tensor([[3, 17, 5], [3, 11, 6], [3, 2, 30]])
    arguments: Any = (16, 16, 64, 100.0, True, torch.float32, [4, 2, 2], interleaved)
    linear = Deployment(rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=64, max_model_len=128)
    monkeypatch.setattr(STATE, "rotaries", [])
    with set_current_vllm_config(VllmConfig()):
        monkeypatch.setattr(building, "checked_deployment", lambda: None)
        stock = MRotaryEmbedding(*arguments)
        monkeypatch.setattr(building, "checked_deployment", lambda: linear)
        module = MRotaryEmbedding(*arguments)
    [rotary] = STATE.rotaries
    assert rotary.row_offsets == (0, 256) and module.cos_sin_cache.shape == (256 + 512, 16)
    monkeypatch.setattr(STATE, "block_row_offset", torch.tensor([0, *rotary.row_offsets]))
    in_a_forward(monkeypatch, {"layer": torch.tensor([8, 10, 4])})  # of blocks 2, 2 and 1
    query, key = torch.randn(3, 32), torch.randn(3, 16)
    at_their_scales = halves * torch.tensor([2, 2, 1])
    for ours, theirs in zip(module(at_their_scales, query, key), stock.forward_native(halves, query, key), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=SOME_FLOAT32_OPERATIONS * 30)
    # Text alone may come with one position for each token.
    alone = module(at_their_scales[0], query, key)[1]
    same = stock.forward_native(halves[0].expand(3, -1), query, key)[1]
    torch.testing.assert_close(alone, same, rtol=0, atol=SOME_FLOAT32_OPERATIONS * 30)
