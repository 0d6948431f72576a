"""A table that can be shown in a terminal and written as Markdown."""

from __future__ import annotations

import dataclasses

import rich.box
import rich.table


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text below headings. The first column is left-aligned, the others to the right."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"a row needs {len(self.headings)} cells, got {len(row)}: {row}")

    def for_terminal(self) -> rich.table.Table:
        """As rich shows it."""
        table = rich.table.Table(title=self.title, title_justify="left", box=rich.box.SIMPLE_HEAD)
        for index, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def as_markdown(self) -> str:
        """As a README takes it: columns padded, so that the source is a table, too."""
        cells = [[_escaped(cell) for cell in row] for row in (self.headings, *self.rows)]
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


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
