"""Problems: their answers by an oracle that reads the text alone, their limits, and what counts as solved."""

from __future__ import annotations

import random
import re

import pytest

from posenc_runtime.zoo.lengths import problems, vocabulary


@pytest.mark.parametrize("length", [1, 2, 7, 16])
def test_the_sum_is_what_python_makes_of_the_two_numbers(length: int) -> None:
    for problem in problems.problems("addition", length, 100, seed=3):
        found = re.fullmatch(r"((?:\d )+)\+ ((?:\d )+)=", problem.text)
        assert found
        first, second = ("".join(number.split())[::-1] for number in found.groups())
        assert len(first) == len(second) == problem.length == length
        assert set(first + second) <= {"0", "1"}
        assert int("".join(problem.answer)[::-1], base=2) == int(first, base=2) + int(second, base=2)
        assert problem.answer[-1] == "1" or problem.answer == ("0",)


def test_numbers_end_with_their_highest_bit() -> None:
    for seed in range(20):
        drawn = problems.addition(3, random.Random(seed))
        assert (drawn.prompt[2], drawn.prompt[6]) == ("1", "1")


@pytest.mark.parametrize("length", [1, 20, 40])
def test_the_copy_is_the_text_before_the_equals_sign(length: int) -> None:
    for problem in problems.problems("copying", length, 50, seed=3):
        assert re.fullmatch(r"(?:[a-z] )+=", problem.text)
        assert " ".join((*problem.answer, "=")) == problem.text
        assert len(problem.answer) == problem.length == length


def test_the_same_seed_gives_the_same_problems_and_another_seed_others() -> None:
    first, again, other = (problems.problems("addition", 8, 20, seed) for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)


@pytest.mark.parametrize(
    ("completion", "solved"), [("1 0", True), (" 1 0 ", True), ("1", False), ("1 0 0", False), ("0 1", False)]
)
def test_the_whole_answer_must_match_and_nothing_may_follow(completion: str, solved: bool) -> None:
    problem = problems.Problem(("x", "k", "="), ("1", "0"), 2)
    assert problem.is_solved_by(completion) is solved


def test_the_tokenizer_reads_problems_as_training_does() -> None:
    tok = vocabulary.of_tasks()
    for task in problems.TASKS:
        for problem in problems.problems(task, 9, 10, seed=0):
            assert tok.encode(problem.text) == vocabulary.ids_of(problem.prompt)
    assert len(tok) == len(vocabulary.WORDS) == len(vocabulary.IDS)
