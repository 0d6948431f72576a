"""What counts as the same greedy answer, where sums may be taken in another order."""

from __future__ import annotations

import torch

from tests.engine.greedy import alike, greedy
from tests.tolerance import LOGPROB_FLOAT32

LIKELY, AS_LIKELY, LESS_LIKELY = -1.0, -1.0 - LOGPROB_FLOAT32 / 2, -1.0 - 2 * LOGPROB_FLOAT32


def test_of_equally_likely_tokens_the_chosen_one_is_the_greedy_choice() -> None:
    logprobs = torch.tensor([[LIKELY, AS_LIKELY, LESS_LIKELY]]).expand(3, 3)
    choices, said = greedy(logprobs, [0, 1, 2])
    assert choices == [0, 1, 0]
    assert said == torch.tensor([LIKELY, AS_LIKELY, LESS_LIKELY]).tolist()


def test_answers_may_part_where_two_tokens_are_as_likely_and_nowhere_else() -> None:
    said = [3, 5, 7], [LIKELY, LIKELY, LIKELY]
    assert alike(said, said)
    assert alike(said, ([3, 6, 8], [AS_LIKELY, AS_LIKELY, -9.0]))
    assert not alike(said, ([3, 6, 8], [LIKELY, LESS_LIKELY, -9.0]))
    assert not alike(said, ([3, 5, 7], [LIKELY, LIKELY, LESS_LIKELY]))
