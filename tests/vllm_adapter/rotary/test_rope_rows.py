"""The operation by which the rotary embedding asks for rows: it finds the slots of the forward that it runs in."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from vllm import forward_context

from posenc_runtime.kernels import ops
from posenc_runtime.vllm_adapter.rotary import registration
from posenc_runtime.vllm_adapter.rotary import rows as row_lookup
from posenc_runtime.vllm_adapter.worker.worker_state import STATE

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
