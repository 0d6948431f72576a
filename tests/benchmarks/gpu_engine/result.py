"""What has been found so far, written whenever some more is there: it is kept if the run is ended from outside."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.gpu import device, output
from tests.benchmarks.gpu.rows import Row, State
from tests.benchmarks.gpu_engine import report
from tests.benchmarks.gpu_engine.part import Part
from tests.benchmarks.gpu_engine.sizes import Sizes


class Result:
    """The rows of some parts.

    Args:
        place: where they are written to, the first time at once: OUT.json and OUT.md.
    """

    def __init__(self, parts: Sequence[Part], sizes: Sizes, place: pathlib.Path, *, is_rehearsal: bool) -> None:
        self._rows = {part.name: part.rows(sizes) for part in parts}
        self._samples: dict[str, dict[str, Any]] = {}
        self._sizes, self._place, self._is_rehearsal = sizes, place, is_rehearsal
        self._began = time.monotonic()
        self._facts = {} if is_rehearsal else {"GPU": device.name()} | device.looked_at()
        self._facts.pop("SM clock", None)  # of a device on which nothing runs
        self._write()

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self._rows.values() for row in rows]

    def open_rows(self, part: Part) -> list[Row]:
        """Those that are not answered."""
        return [row for row in self._rows[part.name] if row.state == State.open]

    def take(self, part: Part, answers: Sequence[Row], samples: dict[str, Any]) -> None:
        """Take in what was measured at this moment, while engines are alive: an idle device lets its clock fall."""
        clock = "" if self._is_rehearsal else device.looked_at().get("SM clock", "unknown")
        self._samples.setdefault(part.name, {}).update(samples)
        self._replace(part, [dataclasses.replace(row, sm_clock=clock) for row in answers])

    def leave(self, part: Part, rows: Sequence[Row]) -> None:
        """Take in rows that say why they were not measured."""
        self._replace(part, rows)

    def tell(self, line: str) -> None:
        """What is going on, with the seconds since it began."""
        output.tell(f"{time.monotonic() - self._began:5.0f} s  {line}")

    def _replace(self, part: Part, rows: Sequence[Row]) -> None:
        by_name = {(row.name, row.quantity): row for row in rows}
        self._rows[part.name] = [by_name.get((row.name, row.quantity), row) for row in self._rows[part.name]]
        if clocks := dict.fromkeys(row.sm_clock for row in self.rows if row.sm_clock):
            self._facts["SM clock after rounds"] = ", ".join(clocks)
        self._write()
        for row in rows:
            self.tell(f"    {report.in_a_line(row)}")

    def _write(self) -> None:
        report.write(self._place, self.rows, self._sizes, self._samples, self._facts, is_rehearsal=self._is_rehearsal)
