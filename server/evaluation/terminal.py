"""Shows a report in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.evaluation.result import Report

if TYPE_CHECKING:
    from rich.console import Console


def show(report: Report, console: Console) -> None:
    """Print the tables, and the remarks below them."""
    for table in report.tables:
        console.print(table.for_terminal())
    for remark in report.remarks:
        console.print(remark, highlight=False, markup=False)
