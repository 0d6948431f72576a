"""Shows a report in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.evaluation.report import Report

if TYPE_CHECKING:
    from rich.console import Console


def show(report: Report, console: Console) -> None:
    """Print the tables, and the remarks below them."""
    from rich import box
    from rich.table import Table

    for each in report.tables:
        table = Table(title=each.title, title_justify="left", box=box.SIMPLE_HEAD, caption=each.note or None)
        for index, heading in enumerate(each.headings):
            table.add_column(heading, justify="right" if index else "left")
        for row in each.rows:
            table.add_row(*row)
        console.print(table)
    for remark in report.remarks:
        console.print(remark, highlight=False, markup=False)
