"""All methods that serve requests past the trained length, of both kinds, by the name that ``rope_type`` gives them.

A method of ``scaling`` changes what keys are: an engine keeps a scale for each block, and turns keys when a request
outgrows its scale. A method of ``read_time`` leaves keys alone and turns queries: an engine needs no more than
attention that does so.
"""

from __future__ import annotations

from typing import Any

from posenc_runtime.encodings import read_time, scaling


def available() -> tuple[str, ...]:
    """The known values of ``rope_type``."""
    return tuple(sorted((*scaling.available(), *read_time.available())))


def turns_queries(rope_type: str) -> bool:
    """Whether a method needs attention that turns queries, and no scales."""
    return rope_type in read_time.available()


def method(rope_type: str) -> type[Any]:
    """The dataclass of a method; its fields are the parameters that the method takes.

    Raises:
        ValueError: when no method has that name.
    """
    if turns_queries(rope_type):
        return read_time.method(rope_type)
    if rope_type not in scaling.available():
        raise ValueError(f"rope_type must be one of {', '.join(available())}, got {rope_type!r}")
    return scaling.method(rope_type)
