"""The operation by which the rotary embedding asks for rows: it finds the slots of the forward that it runs in."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from vllm import forward_context

from posenc_runtime.vllm_adapter import rotary
from posenc_runtime.vllm_adapter.worker_state import STATE

POSITIONS = torch.tensor([3, 4, 0, 9])
SLOTS = torch.tensor([7, 8, 4, -1])  # of blocks 1, 2, 1 and of none


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    rotary.register()
    monkeypatch.setattr(STATE, "block_row_offset", torch.tensor([0, 100, 500]))
    monkeypatch.setattr(STATE, "block_size", {"layer": 4})


def in_a_forward(monkeypatch: pytest.MonkeyPatch, slot_mapping: Any) -> None:
    context = types.SimpleNamespace(slot_mapping=slot_mapping, additional_kwargs={})
    monkeypatch.setattr(forward_context, "is_forward_context_available", lambda: True)
    monkeypatch.setattr(forward_context, "get_forward_context", lambda: context)


def rows(positions: torch.Tensor) -> list[int]:
    found: list[int] = torch.ops.vllm.posenc_rope_rows(positions).tolist()
    return found


def test_a_token_takes_the_row_of_its_position_at_the_scale_of_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_forward(monkeypatch, {"layer": SLOTS})
    assert rows(POSITIONS) == [103, 504, 100, 9]


def test_all_layers_of_a_forward_get_the_same_rows_and_other_positions_get_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_a_forward(monkeypatch, {"layer": SLOTS})
    assert [rows(POSITIONS) for _ in range(2)] == [[103, 504, 100, 9]] * 2
    assert rows(POSITIONS + 1) == [104, 505, 101, 10]
    assert rows(POSITIONS[:2]) == [103, 504]


def test_another_forward_has_slots_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_forward(monkeypatch, {"layer": SLOTS})
    rows(POSITIONS)
    in_a_forward(monkeypatch, {"layer": SLOTS.flip(0)})
    assert rows(POSITIONS) == [3, 104, 500, 109]


def test_before_there_is_a_cache_rows_are_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_forward(monkeypatch, {"layer": SLOTS})
    monkeypatch.setattr(STATE, "block_row_offset", None)
    assert rows(POSITIONS) == POSITIONS.tolist()


def test_a_forward_cut_into_micro_batches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_forward(monkeypatch, [{"layer": SLOTS}, {"layer": SLOTS}])
    with pytest.raises(RuntimeError, match="switch off enable_dbo"):
        rows(POSITIONS)
