"""Nobody is looked at too late, and nobody for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posenc_runtime.kv.calendar import Calendar, steps_until_due


def test_a_request_is_looked_at_in_its_step_and_in_no_other() -> None:
    calendar = Calendar()
    calendar.note("a", 2)
    calendar.note("b", 1)
    assert [calendar.next_step() for _ in range(4)] == [["b"], ["a"], [], []]


def test_the_last_note_of_a_request_holds() -> None:
    calendar = Calendar()
    calendar.note("a", 1)
    calendar.note("a", 3)
    assert [calendar.next_step() for _ in range(4)] == [[], [], ["a"], []]


def test_nothing_is_kept_of_a_request_that_is_forgotten() -> None:
    calendar = Calendar()
    calendar.note("a", 1000)
    calendar.forget("a")
    calendar.forget("a")
    assert not calendar._by_step and not calendar._step_of


@pytest.mark.parametrize(
    ("length", "num_known_tokens", "num_steps"),
    [(512, 511, 2), (512, 512, 1), (512, 900, 1), (512, 12, 501)],
    ids=["one-to-go", "there", "replays", "a-token-a-step"],
)
def test_a_request_grows_by_a_token_a_step_once_all_that_is_known_is_computed(
    length: int, num_known_tokens: int, num_steps: int
) -> None:
    assert steps_until_due(length, num_known_tokens) == num_steps


@pytest.mark.parametrize(
    ("num_known_tokens", "num_steps"),
    [(503, 2), (508, 1), (511, 1), (12, 101)],
    ids=["nine-to-go", "four-to-go", "one-to-go", "many-to-go"],
)
def test_a_request_grows_by_drafted_tokens_too(num_known_tokens: int, num_steps: int) -> None:
    assert steps_until_due(512, num_known_tokens, num_drafted=4) == num_steps


@given(
    length=st.integers(1, 30),
    num_known_tokens=st.integers(1, 40),
    num_drafted=st.integers(0, 4),
    chunks=st.lists(st.integers(0, 12), min_size=60, max_size=60),
)
def test_however_a_request_is_scheduled_it_is_not_there_before_it_is_looked_at(
    length: int, num_known_tokens: int, num_drafted: int, chunks: list[int]
) -> None:
    num_steps, num_computed = steps_until_due(length, num_known_tokens, num_drafted=num_drafted), 0
    for step, chunk in enumerate(chunks):
        if step == num_steps:
            return
        assert step == 0 or num_computed < length
        num_computed = min(num_computed + chunk, num_known_tokens + num_drafted)
        num_known_tokens = max(num_known_tokens, num_computed + 1 if num_computed >= num_known_tokens else 0)
