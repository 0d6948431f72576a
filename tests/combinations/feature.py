"""A row of the tables, and what a user sets to ask for its feature."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.combinations.asking import Asked


@dataclasses.dataclass(frozen=True)
class Feature:
    """A row of the table with scales, of the one at read time, or of both.

    Attributes:
        name: in Markdown.
        asked: all that the row stands for; what start-up says of them must be the same. A row without settings is about
            what requests ask for.
        shown: tests that show it with scales, as ``folder/file.py::name`` below ``tests``; empty where it is refused.
        shown_at_read_time: the same for positions at read time.
        known: what else to know of it with scales, in Markdown.
        known_at_read_time: the same for positions at read time.
        instead: what to do where it is refused, in Markdown; where it is empty, what the refusals advise.
        instead_at_read_time: the same for positions at read time; where it is empty, as with scales.
        with_scales: whether it has a row in the table with scales.
        at_read_time: whether it has a row in the table at read time.
    """

    name: str
    asked: tuple[Asked, ...] = (Asked(),)
    _: dataclasses.KW_ONLY
    shown: tuple[str, ...] = ()
    shown_at_read_time: tuple[str, ...] = ()
    known: str = ""
    known_at_read_time: str = ""
    instead: str = ""
    instead_at_read_time: str = ""
    with_scales: bool = True
    at_read_time: bool = True


def given(model: dict[str, Any] | None = None, drafter: dict[str, Any] | None = None, **arguments: Any) -> Asked:
    return Asked(arguments, model or {}, drafter or {})


def drafts(method: str, model: dict[str, Any] | None = None, **settings: Any) -> Asked:
    return given(model, speculative_config={"method": method, **settings})


def connector(name: str, *, in_our_place: bool = False, **said: Any) -> Asked:
    transfer = {"kv_connector": name, "kv_role": "kv_both", **said}
    return Asked({"kv_transfer_config": transfer}, in_our_place=in_our_place)
