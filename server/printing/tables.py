"""A table that can be shown in a terminal and written as Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.table


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text below headings. The first column is left-aligned, the others to the right.

    Attributes:
        note: a sentence below it; empty for none.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"a row needs {len(self.headings)} cells, got {len(row)}: {row}")

    def for_terminal(self) -> rich.table.Table:
        """As rich shows it, with title and note."""
        import rich.box
        import rich.table

        table = rich.table.Table(
            title=self.title, title_justify="left", box=rich.box.SIMPLE_HEAD, caption=self.note or None
        )
        for index, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def as_markdown(self) -> str:
        """The rows alone. Columns are padded, so that the source is a table, too."""
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (self.headings, *self.rows)]
        widths = [max(3, *(len(row[index]) for row in cells)) for index in range(len(self.headings))]
        rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
        head, *body = (
            [
                cell.rjust(width) if index else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            for row in cells
        )
        return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))
