"""What the Grafana dashboard asks Prometheus for: its expressions, and the metrics and labels that they name."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

DASHBOARD = pathlib.Path(__file__).resolve().parents[2] / "deploy/observability/grafana/dashboards/posenc.json"

AGGREGATIONS = frozenset({"sum", "min", "max", "avg", "count", "group"})
RATES = frozenset({"rate", "irate", "increase"})
FUNCTIONS = RATES | {"histogram_quantile", "clamp_min", "clamp_max"}

# The part of PromQL that the dashboard needs. Anything else is refused and not guessed at: a reader that skips what it
# does not know would report labels as checked that it never saw.
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<window>\[[^\[\]]+\])
      | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<operator>=~|!~|!=|==|>=|<=|[-+*/=<>])
      | (?P<bracket>[(){},])
    )\s*""",
    re.VERBOSE,
)
_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+),\s*(?P<label>\w+)\)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
    """One expression, and the panel or the variable that asks it."""

    where: str
    expression: str
    legend: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selector:
    """One metric of an expression.

    Attributes:
        matchers: label, operator and value.
        grouped_by: labels of the ``by`` clauses around it.
        functions: the functions and aggregations around it, the innermost last.
        window: ``[5m]``, None for an instant.
    """

    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    grouped_by: frozenset[str]
    functions: tuple[str, ...]
    window: str | None

    @property
    def labels(self) -> frozenset[str]:
        """Every label that the metric must have."""
        return self.grouped_by | {label for label, _, _ in self.matchers}


def load_dashboard() -> dict[str, Any]:
    """The dashboard's file."""
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return dashboard


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels that show something: all but the headings of rows, and what a folded row holds."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panels({"panels": panel.get("panels", [])})
        else:
            yield panel


def queries(dashboard: dict[str, Any]) -> list[Query]:
    """Every expression of the panels and the template variables."""
    found = [
        Query(where=panel["title"], expression=target["expr"], legend=target.get("legendFormat", ""))
        for panel in panels(dashboard)
        for target in panel.get("targets", [])
    ]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        match = _LABEL_VALUES.fullmatch(variable["query"]["query"])
        if match is None:
            raise ValueError(f"variable {variable['name']}: not of the form label_values(selector, label)")
        # Grafana's own notation; this is its meaning in PromQL.
        expression = f"group by ({match['label']}) ({match['selector']})"
        found.append(Query(where=f"variable {variable['name']}", expression=expression))
    return found


def selectors(expression: str) -> list[Selector]:
    """The metrics of an expression, in their order.

    Raises:
        ValueError: when the expression is not well-formed, or uses a part of PromQL that is not known here.
    """
    return _Reader(expression).read()


_OF_THE_TARGET = {"instance", "job"}  # labels that Prometheus gives to all that it scrapes from one server


def missing_from_exposition(text: str) -> list[str]:
    """What the dashboard asks for and a server's ``/metrics`` lacks.

    Args:
        text: the answer of ``/metrics``.

    Returns:
        ``metric`` for a metric without any sample, ``metric{label}`` for a label that no sample of it has; sorted.
    """
    exposed: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            exposed.setdefault(sample.name, set()).update(sample.labels)
    missing = set()
    for query in queries(load_dashboard()):
        for selector in selectors(query.expression):
            if selector.metric not in exposed:
                missing.add(selector.metric)
            else:
                lacking = selector.labels - exposed[selector.metric] - _OF_THE_TARGET
                missing.update(f"{selector.metric}{{{label}}}" for label in lacking)
    return sorted(missing)


class _Reader:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = list(_tokens(expression))
        self._next = 0

    def read(self) -> list[Selector]:
        found: list[Selector] = []
        around: list[tuple[str, frozenset[str]]] = []
        after_operand = False
        while self._next < len(self._tokens):
            kind, token = self._take()
            begins_operand = kind in ("name", "number") or token == "("
            if begins_operand == after_operand:
                self._fail(f"{token} does not belong where it stands")
            after_operand = False
            if kind == "name" and (self._at("(") or self._at("by")):
                around.append(self._call(token))
            elif kind == "name":
                found.append(self._selector(token, around))
                after_operand = True
            elif kind == "number":
                after_operand = True
            elif token == "(":
                around.append(("", frozenset()))
            elif token == ")":
                if not around:
                    self._fail("a bracket is closed that was not opened")
                around.pop()
                after_operand = True
            elif kind != "operator" and not (token == "," and around):
                self._fail(f"{token} does not belong where it stands")
        if around or not after_operand:
            self._fail("it ends too early")
        return found

    def _call(self, name: str) -> tuple[str, frozenset[str]]:
        by: frozenset[str] = frozenset()
        if self._at("by"):
            if name not in AGGREGATIONS:
                self._fail(f"{name} takes no by")
            self._take()
            by = frozenset(self._names_in_brackets())
        elif name not in AGGREGATIONS | FUNCTIONS:
            self._fail(f"{name} is no function known here")
        self._expect("(")
        return name, by

    def _selector(self, metric: str, around: list[tuple[str, frozenset[str]]]) -> Selector:
        matchers = []
        if self._at("{"):
            self._take()
            while not self._at("}"):
                label, operator, value = (self._take(kind)[1] for kind in ("name", "operator", "text"))
                if operator not in ("=", "!=", "=~", "!~"):
                    self._fail(f"{operator} matches no label")
                matchers.append((label, operator, value[1:-1]))
                if not self._at("}"):
                    self._expect(",")
            self._take()
        window = None
        if self._next < len(self._tokens) and self._tokens[self._next][0] == "window":
            window = self._take()[1]
        return Selector(
            metric=metric,
            matchers=tuple(matchers),
            grouped_by=frozenset().union(*(by for _, by in around)),
            functions=tuple(name for name, _ in around if name),
            window=window,
        )

    def _names_in_brackets(self) -> list[str]:
        self._expect("(")
        names = [self._take("name")[1]]
        while self._at(","):
            self._take()
            names.append(self._take("name")[1])
        self._expect(")")
        return names

    def _at(self, token: str) -> bool:
        return self._next < len(self._tokens) and self._tokens[self._next][1] == token

    def _take(self, kind: str | None = None) -> tuple[str, str]:
        if self._next == len(self._tokens):
            self._fail("it ends too early")
        token = self._tokens[self._next]
        if kind is not None and token[0] != kind:
            self._fail(f"{token[1]} stands where a {kind} belongs")
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        if not self._at(token):
            self._fail(f"{token} is missing")
        self._take()

    def _fail(self, why: str) -> None:
        raise ValueError(f"{why}: {self._expression}")


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"not PromQL from {expression[position:]!r} on: {expression}")
        assert match.lastgroup is not None
        yield match.lastgroup, match[match.lastgroup]
        position = match.end()
