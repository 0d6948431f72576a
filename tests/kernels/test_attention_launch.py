"""What the attention kernels would compute wrongly is refused before they are launched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posenc_runtime.kernels.attention import launch as attention_launch
from posenc_runtime.kernels.attention.launch import arguments, check
from posenc_runtime.kernels.attention.paged import PagedBatch


def step(**changed: Any) -> tuple[Any, ...]:
    """Two requests of one token each: 4 heads over 2 of keys, 16 wide, in 3 blocks of 8."""
    cache = torch.zeros(3, 8, 2, 32).transpose(1, 2)
    given = {
        "query": torch.zeros(2, 4, 16),
        "keys": cache[..., :16],
        "values": cache[..., 16:],
        "starts": torch.tensor([0, 1, 2], dtype=torch.int32),
        "out": torch.zeros(2, 4, 16),
    } | changed
    lengths, table = torch.tensor([5, 9], dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32)
    batch = PagedBatch(table, given["starts"], lengths, max_query_len=1, max_seq_len=9)
    return given["query"], given["keys"], given["values"], batch, given["out"]


def test_a_step_over_one_cache_is_taken() -> None:
    check(*step())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        pytest.param(
            {"values": torch.zeros(3, 2, 8, 16)},
            r"the same strides, got \(512, 32, 64, 1\) and \(256, 128, 16, 1\)",
            id="values-that-lie-otherwise",
        ),
        pytest.param(
            {"keys": torch.zeros(3, 2, 8, 16).half()},
            "one data type, got torch.float32, torch.float16 and torch.float32",
            id="keys-of-another-type",
        ),
        pytest.param(
            {"query": torch.zeros(2, 16, 4).transpose(1, 2)}, "the last stride must be 1", id="queries-across"
        ),
        pytest.param(
            {"starts": torch.tensor([0, 1, 2])}, "query_start_loc and seq_lens must be int32, got", id="starts-of-int64"
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check(*step(**changed))


def test_what_does_not_go_together_is_refused_after_a_step_that_does() -> None:
    arguments(*step())
    for changed in ({"values": torch.zeros(3, 2, 8, 16)}, {"starts": torch.tensor([0, 1, 2])}):
        with pytest.raises(ValueError, match="must"):
            arguments(*step(**changed))


def test_steps_of_alike_tensors_are_checked_once_and_are_given_their_own_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = arguments(*step())

    def check_again(*_: Any, **__: Any) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr(attention_launch, "check", check_again)
    given = step()
    second = arguments(*given)
    of_batch = {name for name in second if name.startswith("p_")}
    assert all(second[name] is not first[name] for name in of_batch)
    assert second["p_block_table"] is given[3].block_table and second["p_seq_lens"] is given[3].seq_lens
    assert {name: first[name] for name in first.keys() - of_batch} == {
        name: second[name] for name in second.keys() - of_batch
    }
    with pytest.raises(AssertionError, match="checked again"):
        arguments(*step(query=torch.zeros(2, 2, 16)))
