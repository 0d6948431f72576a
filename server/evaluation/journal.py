"""The journal of an evaluation: one JSON object a line, written as results come, from which a later run goes on."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from server.evaluation import EvaluationRefused

_NAME = "journal.jsonl"
_FORMAT = 1


class Journal:
    """What was measured so far. Its first line says what is measured; a line of each target says what it is.

    Use ``open_journal``.
    """

    def __init__(self, path: pathlib.Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self.targets: dict[str, dict[str, Any]] = {}
        self.results: dict[str, dict[str, dict[str, Any]]] = {}

    def begin_target(self, name: str, described: Mapping[str, Any]) -> None:
        """Note what a target is. One of which nothing was measured, because it did not start, may be another one now.

        Raises:
            EvaluationRefused: when an earlier run measured another target of this name.
        """
        described = _as_read(described)
        before = self.targets.get(name)
        if before == described:
            return
        if before is None or not self.results[name]:
            self._append({"target": name, "described": described})
            self.targets[name], self.results[name] = described, {}
        else:
            raise EvaluationRefused(
                f"--target {name}: {self._path} has results of another target of this name "
                f"({_difference(before, described)}): give it another name, or another --out"
            )

    def add(self, target: str, item: str, seed: int, record: Mapping[str, Any]) -> None:
        """Write a result; it is on its way to the disk when this returns."""
        record = _as_read(record)
        self._append({"target": target, "item": item, "seed": seed, "record": record})
        self.results[target][item] = record

    def _append(self, line: Mapping[str, Any]) -> None:
        # One call: an interrupt leaves a whole line or none, a kill at worst a torn one, which the next run cuts off.
        os.write(self._descriptor, (json.dumps(line, separators=(",", ":")) + "\n").encode())

    def _read(self, task: str, options: Mapping[str, Any]) -> None:
        whole, _, torn = self._path.read_bytes().rpartition(b"\n")
        if torn:
            os.truncate(self._path, len(whole) + 1 if whole else 0)
        lines = whole.splitlines()
        if not lines:
            self._append({"format": _FORMAT, "task": task, "options": options})
            return
        try:
            head, *rest = map(json.loads, lines)
            before = {"format": head["format"], "task": head["task"]} | head["options"]
            for line in rest:
                if "described" in line:
                    self.targets[line["target"]], self.results[line["target"]] = line["described"], {}
                else:
                    self.results[line["target"]][line["item"]] = line["record"]
        except (ValueError, KeyError, TypeError):
            raise EvaluationRefused(
                f"--out: {self._path} is no journal of an evaluation: give another folder"
            ) from None
        now = _as_read({"format": _FORMAT, "task": task} | dict(options))
        if before != now:
            raise EvaluationRefused(
                f"--out: {self._path.parent} has an evaluation of another configuration ({_difference(before, now)}): "
                "give the same options to continue it, or another folder"
            )


@contextlib.contextmanager
def open_journal(folder: pathlib.Path, task: str, options: Mapping[str, Any]) -> Iterator[Journal]:
    """Open the journal of a folder, or begin one.

    Args:
        options: what all its results have in common.

    Raises:
        EvaluationRefused: when the folder has an evaluation with other options, or another process writes to it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / _NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise EvaluationRefused(f"--out: {folder} must be a folder that can be written to: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EvaluationRefused(
                f"--out: another evaluation writes to {folder}: wait for it, or give another"
            ) from None
        journal = Journal(path, descriptor)
        journal._read(task, options)
        yield journal
    finally:
        os.close(descriptor)


def _as_read(written: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists, keys are texts."""
    found: dict[str, Any] = json.loads(json.dumps(written))
    return found


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first thing that differs, in words."""
    name = next(name for name in {**now, **before} if before.get(name) != now.get(name))
    return f"{name} was {_short(before.get(name))}, is {_short(now.get(name))}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
