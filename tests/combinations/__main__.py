"""Writes the tables of features into ``docs/limits.md``."""

from __future__ import annotations

import argparse

from tests.combinations.features import GROUPS
from tests.combinations.page import PAGE, TABLES, replaced


def main() -> None:
    """Write the tables into the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    page = PAGE.read_text(encoding="utf-8")
    for name, tables in TABLES.items():
        page = replaced(name, page, tables(GROUPS))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
