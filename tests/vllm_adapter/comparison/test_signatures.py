"""Whether a function can be called as another one: what is said to fit is called in every way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.comparison.signatures import misfits


def stock(a: int, b: int, c: int = 0, *, d: int = 0) -> None:
    pass


def alike(a: int, b: int, c: int = 1, *, d: int = 1, e: int = 1) -> None:
    pass


def taking_anything(*args: Any, **kwargs: Any) -> None:
    pass


def naming_the_first(a: int, *rest: int, **named: int) -> None:
    pass


def with_more_places(a: int, b: int, c: int = 0, d: int = 0) -> None:
    pass


def without_the_last(a: int, b: int) -> None:
    pass


def by_other_names(x: int, y: int, z: int = 0, *, d: int = 0) -> None:
    pass


def in_another_order(b: int, a: int, c: int = 0, *, d: int = 0) -> None:
    pass


def demanding_what_may_be_left_out(a: int, b: int, c: int, *, d: int = 0) -> None:
    pass


def demanding_more(a: int, b: int, c: int = 0, *, d: int = 0, e: int) -> None:
    pass


def demanding_another_place(a: int, b: int, c: int = 0, e: int = 0, *, d: int) -> None:
    pass


def by_name_alone(a: int, b: int, *, c: int = 0, d: int = 0) -> None:
    pass


def in_place_alone(a: int, b: int, c: int = 0, /, *, d: int = 0) -> None:
    pass


FITTING = [alike, taking_anything, naming_the_first, with_more_places]
UNFIT = {
    without_the_last: ["takes no positional argument c", "takes no keyword argument d"],
    by_other_names: ["takes no keyword argument a", "takes no keyword argument b", "takes no keyword argument c"],
    in_another_order: ["takes b at the position of a", "takes a at the position of b"],
    demanding_what_may_be_left_out: ["requires c, which vLLM may leave out"],
    demanding_more: ["requires e, which vLLM does not pass"],
    demanding_another_place: ["requires d, which vLLM may leave out"],
    by_name_alone: ["takes no positional argument c"],
    in_place_alone: ["takes no keyword argument a", "takes no keyword argument b", "takes no keyword argument c"],
}


def found(ours: Callable[..., Any], theirs: Callable[..., Any] = stock) -> list[str]:
    return misfits(ours, theirs, ours_has_object=False, stock_has_object=False)


def ways() -> list[tuple[tuple[int, ...], dict[str, int]]]:
    """Every way to call ``stock``."""
    every = []
    for num_in_place, with_c, with_d in itertools.product(range(4), (False, True), (False, True)):
        named = {name: 1 for name in ("a", "b")[num_in_place:]}
        named |= {"c": 1} if with_c and num_in_place < 3 else {}
        named |= {"d": 1} if with_d else {}
        every.append(((1,) * num_in_place, named))
    return every


@pytest.mark.parametrize("ours", FITTING)
def test_what_fits_can_be_called_in_every_way(ours: Callable[..., Any]) -> None:
    assert found(ours) == []
    for places, named in ways():
        stock(*places, **named)
        ours(*places, **named)


@pytest.mark.parametrize("ours", UNFIT)
def test_what_does_not_fit_is_said_and_cannot_be_called_in_some_way(ours: Any) -> None:
    assert found(ours) == UNFIT[ours]
    if ours is not in_another_order:  # which can be called, and takes one for the other
        with pytest.raises(TypeError):
            for places, named in ways():
                ours(*places, **named)


def test_what_the_function_of_vllm_collects_is_collected_by_ours() -> None:
    def collecting(a: int, *rest: int, **named: int) -> None:
        pass

    assert found(taking_anything, collecting) == found(naming_the_first, collecting) == []
    assert found(alike, collecting) == ["takes no *rest", "takes no **named", "requires b, which vLLM does not pass"]


def test_a_function_of_vllm_that_takes_anything_says_nothing() -> None:
    assert found(without_the_last, taking_anything) == []


def test_the_object_is_left_out_of_either() -> None:
    class Theirs:
        def method(self, a: int) -> None:
            pass

    class Ours:
        def method(this, a: int) -> None:
            pass

    def told(*, ours_has_object: bool, stock_has_object: bool) -> list[str]:
        ours = Ours.method if ours_has_object else Ours().method
        theirs = Theirs.method if stock_has_object else Theirs().method
        return misfits(ours, theirs, ours_has_object=ours_has_object, stock_has_object=stock_has_object)

    for of_ours, of_theirs in itertools.product((False, True), repeat=2):
        assert told(ours_has_object=of_ours, stock_has_object=of_theirs) == []
