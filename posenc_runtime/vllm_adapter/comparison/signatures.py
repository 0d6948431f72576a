"""Whether our function accepts every call that vLLM's function, which it replaces, accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Any

_IN_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_ANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def misfits(
    ours: Callable[..., Any], stock: Callable[..., Any], *, ours_has_object: bool, stock_has_object: bool
) -> list[str]:
    """The ways to call vLLM's function that ours does not accept, in words; empty where it accepts all.

    Args:
        ours_has_object, stock_has_object: whether the first parameter is the object or the class, which Python passes.
    """
    # Ours is read without following ``__wrapped__``, which leads to the function that ours is compared with.
    mine = list(inspect.signature(ours, follow_wrapped=False).parameters.values())
    theirs = list(inspect.signature(stock).parameters.values())
    return [*_misfits(_without_object(mine, ours_has_object), _without_object(theirs, stock_has_object))]


def _without_object(parameters: list[Parameter], has_object: bool) -> list[Parameter]:
    """The parameters without the object. A leading ``*args`` stays: it takes the object and all that follows."""
    return parameters[1:] if has_object and parameters and parameters[0].kind in _IN_PLACE else parameters


def _misfits(mine: list[Parameter], theirs: list[Parameter]) -> Iterator[str]:
    places = [each for each in mine if each.kind in _IN_PLACE]
    by_name = {each.name: each for each in mine if each.kind not in (Parameter.POSITIONAL_ONLY, *_ANY)}
    takes = {each.kind for each in mine}
    filled = set()
    if {each.kind for each in theirs} == set(_ANY):
        return  # it accepts anything, and so does not tell how it is called
    for index, given in enumerate(theirs):
        if given.kind in _ANY:
            if given.kind not in takes:
                yield f"takes no {'*' if given.kind == Parameter.VAR_POSITIONAL else '**'}{given.name}"
            continue
        place = places[index] if given.kind in _IN_PLACE and index < len(places) else None
        named = by_name.get(given.name) if given.kind != Parameter.POSITIONAL_ONLY else None
        if given.kind in _IN_PLACE and place is None and Parameter.VAR_POSITIONAL not in takes:
            yield f"takes no positional argument {given.name}"
        elif given.kind != Parameter.POSITIONAL_ONLY and named is None and Parameter.VAR_KEYWORD not in takes:
            yield f"takes no keyword argument {given.name}"
        elif place is not None and named is not None and place is not named:
            yield f"takes {place.name} at the position of {given.name}"
        for each in dict.fromkeys(each for each in (place, named) if each is not None):
            filled.add(each.name)
            if given.default is not Parameter.empty and each.default is Parameter.empty:
                yield f"requires {each.name}, which vLLM may leave out"
    for each in mine:
        if each.kind not in _ANY and each.default is Parameter.empty and each.name not in filled:
            yield f"requires {each.name}, which vLLM does not pass"
