"""Writes tables of what start-up says of each feature: served, where and with which test, or refused, and why."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.combinations.asking import DEVICES, Asked, Device, Refusal, refusal
from tests.combinations.feature import Feature
from tests.pages import DOCS

TESTS = pathlib.Path(__file__).parents[1]
PAGE = DOCS / "limits.md"
BEGIN, END = "<!-- {}: written by make combinations -->\n", "<!-- {}: end -->\n"
_BLOB = "https://github.com/posenc/posenc/blob/main/tests"

Groups = Mapping[str, Sequence[Feature]]  # by their names

YARN: dict[str, Any] = {"rope_type": "yarn", "scales": (1.0, 2.0)}
CROSSINGS = ("rerotate", "recompute", "pin")
READ_TIME: tuple[dict[str, Any], ...] = (
    {"rope_type": "rerope"},
    {"rope_type": "dual_chunk"},
)
_HEAD = "| Feature | Served | Why not, and what to know | What to do | Shown by |\n| --- | --- | --- | --- | --- |\n"


class Contradiction(ValueError):
    """A row stands for things that start-up does not say the same of, or its tests do not fit what start-up says."""


def tables_with_scales(groups: Groups) -> str:
    """For methods that change keys: a table for each group of features, under its name."""

    def row(each: Feature) -> str:
        return _row(each, _one(each, _with_scales), each.shown, each.known, each.instead)

    return "\n".join(_table(name, map(row, group)) for name, group in _chosen(groups, lambda each: each.with_scales))


def tables_at_read_time(groups: Groups) -> str:
    """For positions at read time: a table for each group of features, under its name."""

    def row(each: Feature) -> str:
        instead = each.instead_at_read_time or each.instead
        return _row(each, _one(each, _at_read_time), each.shown_at_read_time, each.known_at_read_time, instead)

    return "\n".join(_table(name, map(row, group)) for name, group in _chosen(groups, lambda each: each.at_read_time))


def _chosen(groups: Groups, is_listed: Callable[[Feature], bool]) -> Iterator[tuple[str, list[Feature]]]:
    for name, group in groups.items():
        if features := [each for each in group if is_listed(each)]:
            yield name, features


def _table(name: str, rows: Iterable[str]) -> str:
    return f"**{name}**\n\n{_HEAD}" + "".join(f"{row}\n" for row in rows)


def written(name: str, page: str) -> str:
    """The tables that a page has under a name."""
    _, table, _ = _parts(name, page)
    return table.strip("\n") + "\n"


def replaced(name: str, page: str, table: str) -> str:
    """A page with other tables under a name."""
    before, _, after = _parts(name, page)
    return f"{before}\n{table}\n{after}"


def _parts(name: str, page: str) -> tuple[str, str, str]:
    """What stands before the tables, up to their mark; the tables; and what follows, from their mark."""
    before, begin, rest = page.partition(BEGIN.format(name))
    table, end, after = rest.partition(END.format(name))
    if not begin or not end:
        raise ValueError(f"{PAGE.name} must have {BEGIN.format(name)!r} and {END.format(name)!r}")
    return before + begin, table, end + after


class Said:
    """What start-up says of one thing: where it is served, and why it is refused elsewhere."""

    def __init__(self, served: str, refusals: Iterable[Refusal]) -> None:
        self.served = served
        self.reasons = list(dict.fromkeys(each.reason for each in refusals))
        self.advice = list(dict.fromkeys(each.advice for each in refusals if each.advice))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Said) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return str(vars(self))


def _with_scales(asked: Asked) -> Said:
    return _of_devices({device: _with_scales_on(asked, device) for device in DEVICES})


def _with_scales_on(asked: Asked, device: Device) -> tuple[str, list[Refusal]]:
    said = {crossing: refusal(asked, device, **YARN, on_crossing=crossing) for crossing in CROSSINGS}
    reuse = {
        "rerotate": refusal(asked, device, **YARN, on_crossing="pin", prefix_reuse="rerotate"),
        "continue": refusal(asked, device, **YARN, on_crossing="rerotate", prefix_reuse="continue"),
    }
    refused = [each for each in (*said.values(), *reuse.values()) if each is not None]
    served = [crossing for crossing in CROSSINGS if said[crossing] is None]
    if not served:
        return "no", refused
    reused = [name for name, each in reuse.items() if each is None]
    if len(served) < len(CROSSINGS):
        beside = "" if "rerotate" in reused else ", and `prefix_reuse: exact`"
        return f"with {_and(f'`{name}`' for name in served)}{beside}", refused
    left_out = " or ".join(f"`prefix_reuse: {name}`" for name in reuse if name not in reused)
    return f"yes, but not with {left_out}" if left_out else "yes", refused


def _at_read_time(asked: Asked) -> Said:
    by_device: dict[Device, tuple[str, list[Refusal]]] = {}
    for device in DEVICES:
        refused = [each for method in READ_TIME if (each := refusal(asked, device, **method)) is not None]
        if len(refused) not in (0, len(READ_TIME)):
            raise Contradiction(f"the methods at read time must be refused together, got {asked}: {refused}")
        by_device[device] = ("no" if refused else "yes", refused)
    return _of_devices(by_device)


def _of_devices(said: dict[Device, tuple[str, list[Refusal]]]) -> Said:
    refusals = [each for _, refused in said.values() for each in refused]
    if len({served for served, _ in said.values()}) == 1:
        [served, *_] = (served for served, _ in said.values())
        return Said(served, refusals)
    return Said("; ".join(f"on a {device}: {served}" for device, (served, _) in said.items()), refusals)


def _one(feature: Feature, say: Callable[[Asked], Said]) -> Said:
    """What start-up says of all that a row stands for.

    Raises:
        Contradiction: when it does not say the same of all.
    """
    first, *others = (say(asked) for asked in feature.asked)
    for asked, other in zip(feature.asked[1:], others, strict=True):
        if other != first:
            raise Contradiction(
                f"start-up must say the same of all that {feature.name!r} stands for, got {first} of "
                f"{feature.asked[0]} and {other} of {asked}: give them rows of their own"
            )
    return first


def _row(feature: Feature, said: Said, shown: tuple[str, ...], known: str, instead: str) -> str:
    is_served = re.search(r"\b(yes|with)\b", said.served) is not None
    if is_served != bool(shown):
        raise Contradiction(
            f"a row must name tests where it is served, and none where it is refused, got {said.served!r} and "
            f"{list(shown)} for {feature.name!r}"
        )
    for test in shown:
        refuse_missing_test(test)
    reasons = [_sentence(each) for each in said.reasons]
    known = " ".join([*reasons, f"{known}." if known else ""]).strip()
    links = ", ".join(_link(test) for test in shown)
    cells = (feature.name, said.served, known, _instead(feature, said, instead), links)
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def _instead(feature: Feature, said: Said, instead: str) -> str:
    if not said.reasons:
        return ""
    if not instead and (len(said.advice) != 1 or re.search(r"\b(these|them)\b", said.advice[0])):
        raise Contradiction(
            f"a row must say what to do instead where the refusals' advice needs their rules, got {said.advice} for "
            f"{feature.name!r}: set instead"
        )
    return instead or _marked(said.advice[0])


def refuse_missing_test(test: str) -> None:
    """Check that a test exists.

    Raises:
        Contradiction: when it does not.
    """
    file, _, name = test.partition("::")
    if not (TESTS / file).is_file() or name not in _tests_of(TESTS / file):
        raise Contradiction(f"tests/{file} must have a test {name!r}: name another test in tests/combinations/shown.py")


@functools.cache
def _tests_of(file: pathlib.Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f'[{pathlib.Path(file).stem.removeprefix("test_")}]({_BLOB}/{file} "{name}")'


def _and(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _sentence(reason: str) -> str:
    return _marked(reason[:1].upper() + reason[1:]) + "."


def _marked(words: str) -> str:
    """Names of settings and of classes as code, as the rest of the page has them."""
    return re.sub(r"(?<![\w`.])([a-z]+(?:[._][a-z0-9]+)+|[A-Z]\w*Connector\w*|VLLM_\w+)(?![\w`])", r"`\1`", words)


TABLES: dict[str, Callable[[Groups], str]] = {
    "features with scales": tables_with_scales,
    "features at read time": tables_at_read_time,
}
