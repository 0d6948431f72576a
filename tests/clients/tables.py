"""The tables that ``make test-clients`` prints, as they stand in docs/clients.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

CHECKS = ("answer", "stream", "crossing", "too long", "wrong key", "cancel")
_HEADS = ("answer", "stream", "crossing", "prompt too long: 400", "wrong key: 401", "a stream ends at")
PLACES = ("an answer", "a stream")
_DROPPED = "the client drops it"


@dataclasses.dataclass
class Outcome:
    """What a client did.

    Attributes:
        checks: what went wrong, by the name of the check; None where it worked.
        places: the expressions that give the report, by where it is looked for; None where the client drops it.
        cancelled_by: how the stream was left.
        requests: that the server answered.
        crossings: that the server counted.
    """

    name: str
    version: str
    checks: dict[str, str | None] = dataclasses.field(default_factory=dict)
    places: dict[str, str | None] = dataclasses.field(default_factory=dict)
    cancelled_by: str | None = None
    requests: int = 0
    crossings: int = 0

    @property
    def failures(self) -> list[str]:
        return [f"{self.name}: {check}: {failed}" for check, failed in self.checks.items() if failed]


def libraries(outcomes: Iterable[Outcome]) -> str:
    """What works with each client library."""
    rows = [
        (each.name, each.version, *(_word(each, check) for check in CHECKS), ", ".join(_also(each)))
        for each in outcomes
    ]
    return _table(("client", "version", *_HEADS, "also"), rows)


def places(outcomes: Iterable[Outcome]) -> str:
    """Where each client library has the report of scale and crossings."""
    rows = [(each.name, *(_place(each, place) for place in PLACES)) for each in outcomes]
    return _table(("client", "scale of an answer", "scale of a stream"), rows)


def benchmarks(outcomes: Iterable[Outcome]) -> str:
    """What each benchmark sent."""
    rows = [(each.name, each.version, str(each.requests), str(each.crossings)) for each in outcomes]
    return _table(("benchmark", "version", "requests, none failed", "crossings"), rows)


def _word(outcome: Outcome, check: str) -> str:
    if check not in outcome.checks:
        return "not run"
    if outcome.checks[check]:
        return "FAILED"
    return f"`{outcome.cancelled_by}`" if check == "cancel" else "yes"


def _also(outcome: Outcome) -> list[str]:
    working = (name for name, failed in outcome.checks.items() if not failed)
    return [name.removeprefix("also ") for name in working if name.startswith("also ")]


def _place(outcome: Outcome, place: str) -> str:
    if place not in outcome.places or outcome.checks.get(f"scale of {place}"):
        return "FAILED"
    expression = outcome.places[place]
    return _DROPPED if expression is None else f"`{expression}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
