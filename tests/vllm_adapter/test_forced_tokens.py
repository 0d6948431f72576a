"""A request says what it is told, on both of vLLM's model runners."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from posenc_runtime.vllm_adapter.contract.names import FORCED_TOKEN_IDS, FORCED_TOKENS
from posenc_runtime.vllm_adapter.forced_tokens import ForcedTokens


def told(*forced: int) -> SamplingParams:
    return SamplingParams(extra_args={FORCED_TOKEN_IDS: list(forced)} if forced else None)


def chosen(logits: torch.Tensor) -> list[int | None]:
    """The token of each row that has no other, None for rows that have a choice."""
    return [int(row.argmax()) if torch.isfinite(row).sum() == 1 else None for row in logits]


def test_its_name_for_vllm_is_where_it_is() -> None:
    module, _, name = FORCED_TOKENS.partition(":")
    assert (module, name) == (ForcedTokens.__module__, ForcedTokens.__name__)


def test_runner_1_forces_by_what_was_said_and_follows_moved_rows() -> None:
    processor = ForcedTokens(None, torch.device("cpu"), False)
    said: list[int] = []
    added = [(0, told(3, 1), None, said), (1, told(), None, []), (2, told(2), None, [])]
    processor.update_state(BatchUpdate(batch_size=3, removed=[], added=added, moved=[]))
    assert chosen(processor.apply(torch.zeros(3, 5))) == [3, None, 2]
    said.append(3)
    processor.update_state(BatchUpdate(batch_size=3, removed=[], added=[], moved=[(0, 1, MoveDirectionality.SWAP)]))
    assert chosen(processor.apply(torch.zeros(3, 5))) == [None, 1, 2]
    said.append(1)
    processor.update_state(BatchUpdate(batch_size=2, removed=[2], added=[], moved=[]))
    assert chosen(processor.apply(torch.zeros(2, 5))) == [None, None]
    assert not processor.is_argmax_invariant()


def test_runner_2_forces_by_length_and_forgets_who_had_a_slot_before() -> None:
    requests: Any = types.SimpleNamespace(prompt_len=types.SimpleNamespace(np=np.array([10, 20, 30])))
    processor = ForcedTokens(None, requests)
    assert processor.add_request(2, told(4, 0)) and not processor.add_request(0, told())

    def step(slots: list[int], lengths: list[int]) -> list[int | None]:
        context: Any = types.SimpleNamespace(idx_mapping_np=np.array(slots), seq_lens_upper_bound_np=np.array(lengths))
        return chosen(processor.apply(torch.zeros(len(slots), 5), context))

    assert step([0, 2], [10, 30]) == [None, 4]
    assert step([2, 0], [31, 11]) == [0, None]
    assert step([2], [32]) == [None]
    assert not processor.add_request(2, told())
    assert step([2], [30]) == [None]


@pytest.mark.parametrize("value", ["5", [1, -1], [1.5], [True]])
def test_what_is_no_list_of_token_ids_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"vllm_xargs\.forced_token_ids must be a list of token ids, got"):
        ForcedTokens.validate_params(SamplingParams(extra_args={FORCED_TOKEN_IDS: value}))
    ForcedTokens.validate_params(told(1, 2))
    ForcedTokens.validate_params(told())
