"""Programs: their answers by an independent recount, their limits, and how often each statement occurs."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from posenc_runtime.zoo.counting import task

STATEMENTS = re.compile(r"pass;|(?P<set>[a-e]) = 0 ;|(?P<up>[a-e]) \+\+;|print (?P<asked>[a-e])$")


def recounted(text: str) -> int:
    """The answer as the text alone gives it: increments of the asked variable after its last setting."""
    asked = text[-1]
    _, found, since = text.rpartition(f"{asked} = 0 ;")
    assert found, "what is asked for was never set"
    return since.count(f"{asked} ++;")


@pytest.mark.parametrize("num_variables", [1, 3, 5])
def test_the_answer_is_what_a_recount_of_the_text_gives(num_variables: int) -> None:
    for seed in range(200):
        program = task.make_program(num_variables, seed)
        assert int(program.answer) == recounted(program.text)


def test_the_value_of_every_mention_is_what_a_recount_up_to_there_gives() -> None:
    for seed in range(30):
        program = task.make_program(3, seed, most_statements=120)
        for place, value in enumerate(program.values):
            word = program.words[place]
            if value is not None:
                assert word in "abc"
                assert value == recounted(" ".join((*program.words[:place], "print", word)))
            elif word in task.NAMES:
                assert f"{word} = 0 ;" not in " ".join(program.words[:place])


def test_a_text_is_statements_and_one_question_and_nothing_else() -> None:
    for seed in range(100):
        program = task.make_program(5, seed)
        found = [match.group() for match in STATEMENTS.finditer(program.text)]
        assert " ".join(found) == program.text
        assert len(found) == program.num_statements + 1
        assert sum(one.startswith("print") for one in found) == 1


def test_programs_keep_the_limits_of_the_task() -> None:
    drawn = [task.make_program(3, seed) for seed in range(400)]
    counts = [program.num_statements for program in drawn]
    assert task.FEWEST_STATEMENTS <= min(counts) < 40
    assert 480 < max(counts) <= task.MOST_STATEMENTS
    assert max(len(program.words) for program in drawn) + 2 <= task.LONGEST
    assert {int(program.answer) for program in drawn} == set(range(task.LARGEST + 1))


@pytest.mark.parametrize("num_variables", [1, 3, 5])
def test_only_so_many_variables_occur(num_variables: int) -> None:
    words = {word for seed in range(50) for word in task.make_program(num_variables, seed).words}
    assert words & set(task.NAMES) == set(task.NAMES[:num_variables])


def test_statements_occur_as_often_as_the_task_says_wherever_all_of_them_can() -> None:
    count: Counter[str] = Counter()
    for seed in range(300):
        values: dict[str, int] = {}
        for match in STATEMENTS.finditer(task.make_program(5, seed).text):
            # Before the first setting nothing can be incremented, and at ten a variable cannot.
            everything_can_be = bool(values) and max(values.values()) < task.LARGEST
            if match["set"]:
                values[match["set"]] = 0
            elif match["up"]:
                values[match["up"]] += 1
            count[match.group()[-2:]] += everything_can_be and not match["asked"]
    total = sum(count.values())
    assert total > 20_000
    assert count["s;"] / total == pytest.approx(50 / 58, abs=0.01)
    assert count["+;"] / total == pytest.approx(7 / 58, abs=0.01)
    assert count[" ;"] / total == pytest.approx(1 / 58, abs=0.004)


def test_seeds_repeat_and_differ() -> None:
    assert task.make_program(3, 7) == task.make_program(3, 7)
    assert len({task.make_program(3, seed).text for seed in range(50)}) == 50
    assert task.make_program(3, 7).text != task.make_program(5, 7).text


@pytest.mark.parametrize(
    ("completion", "correct"), [("3", True), (" 3", True), ("3 ;", True), ("", False), ("4", False), ("30", False)]
)
def test_the_first_word_of_a_completion_is_compared(completion: str, correct: bool) -> None:
    words = ("a", "=", "0", ";", "a", "++;", "a", "++;", "a", "++;", "print", "a")
    program = task.Program(words, (*[None] * (len(words) - 1), 3), 4)
    assert task.is_correct(program, completion) is correct
