"""The scale that every block carries."""

from __future__ import annotations

import pytest

from posenc_runtime.kv.ledger import NULL_BLOCK, BlockLedger, MixedRotations


@pytest.fixture
def ledger() -> BlockLedger:
    return BlockLedger()


def test_a_shared_block_counts_once_and_until_its_last_holder_has_gone(ledger: BlockLedger) -> None:
    ledger.write("a", [1, 2], 1)
    ledger.read("b", [1], 1)
    assert ledger.num_held(1) == 2
    ledger.release("a")
    assert ledger.num_held(1) == 1
    ledger.release("b")
    assert ledger.num_held(1) == 0


def test_a_block_keeps_its_scale_for_the_prefix_cache_after_its_request_has_gone(ledger: BlockLedger) -> None:
    ledger.write("a", [1], 1)
    ledger.release("a")
    ledger.read("b", [1], 1)
    assert ledger.num_held(1) == 1


def test_reading_a_block_of_another_scale_is_an_error(ledger: BlockLedger) -> None:
    ledger.write("a", [1], 1)
    with pytest.raises(
        MixedRotations, match=r"request b reads keys of scale number 2, but block 1 .* carries number 1"
    ):
        ledger.read("b", [1], 2)


def test_reading_a_block_that_was_never_written_is_an_error(ledger: BlockLedger) -> None:
    with pytest.raises(MixedRotations, match="carries number None"):
        ledger.read("b", [5], 0)


def test_a_fresh_block_is_lost_to_who_held_it_and_stays_lost_when_that_request_ends(ledger: BlockLedger) -> None:
    ledger.write("a", [1, 2], 1)
    ledger.write("b", [1], 2)  # the window of a moved past block 1
    assert (ledger.num_held(1), ledger.num_held(2)) == (1, 1)
    ledger.release("a")
    assert (ledger.num_held(1), ledger.num_held(2)) == (0, 1)


def test_a_block_that_was_given_back_takes_any_scale(ledger: BlockLedger) -> None:
    ledger.write("a", [1], 1)
    ledger.release("a")
    ledger.write("b", [1], 2)
    assert (ledger.num_held(1), ledger.num_held(2)) == (0, 1)


def test_the_null_block_carries_nothing(ledger: BlockLedger) -> None:
    ledger.write("a", [NULL_BLOCK, 3], 1)
    ledger.read("b", [NULL_BLOCK], 2)
    assert ledger.num_held(1) == 1 and ledger.num_held(2) == 0


def test_releasing_a_request_twice_changes_nothing(ledger: BlockLedger) -> None:
    ledger.write("a", [1], 0)
    ledger.release("a")
    ledger.release("a")
    assert ledger.num_held(0) == 0
