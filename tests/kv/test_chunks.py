"""Chunks of long prompts, by what they cost."""

from __future__ import annotations

import pytest

from posenc_runtime.kv.chunks import Chunks, even_position

EVEN = 1000


def chunks(num_requests: int) -> Chunks:
    made = Chunks(step_tokens=256, chunk_tokens=64, even_position=EVEN)
    made.begin_step(num_requests)
    return made


def cost(position: int, tokens: int) -> float:
    return tokens * (1 + position / EVEN)


def test_attention_costs_as_much_as_the_rest_at_six_times_the_width() -> None:
    width = 576
    weights, scores_and_sum = 12 * width**2, 2 * width
    assert 2 * weights == 2 * scores_and_sum * even_position(width)


@pytest.mark.parametrize(("position", "tokens"), [(0, 64), (1000, 32), (3000, 16), (63_000, 1), (10**6, 1)])
def test_a_chunk_beside_others_costs_the_same_wherever_it_is_and_has_a_token(position: int, tokens: int) -> None:
    assert chunks(2).allow(position=position, num_unread=5000, num_tokens=64) == tokens


@pytest.mark.parametrize(("position", "tokens"), [(0, 256), (1000, 128), (31_000, 8)])
def test_a_prompt_that_is_alone_gets_the_whole_step(position: int, tokens: int) -> None:
    assert chunks(1).allow(position=position, num_unread=5000, num_tokens=256) == tokens


def test_the_end_of_a_prompt_and_a_short_prompt_are_read_at_once() -> None:
    made = chunks(3)
    assert made.allow(position=0, num_unread=59, num_tokens=59) == 59
    assert made.allow(position=1000, num_unread=20, num_tokens=20) == 20


def test_long_prompts_leave_half_of_a_step_to_short_ones() -> None:
    made = chunks(9)
    long = [made.allow(position=3000, num_unread=9000, num_tokens=64) for _ in range(6)]
    assert long == [16, 16, 1, 1, 1, 1]
    assert [made.allow(position=0, num_unread=50, num_tokens=50) for _ in range(2)] == [50, 50]
    total = sum(cost(3000, tokens) for tokens in long) + 100
    assert total <= 256 + cost(3000, 4)


def test_each_step_begins_anew() -> None:
    made = chunks(2)
    first = [made.allow(position=0, num_unread=500, num_tokens=64) for _ in range(4)]
    made.begin_step(2)
    assert first[:2] == [made.allow(position=0, num_unread=500, num_tokens=64) for _ in range(2)] == [64, 64]
