"""Names of tests: sentences, short enough to be understood when they are read once."""

from __future__ import annotations

import ast
import pathlib

TESTS = pathlib.Path(__file__).parent
MOST_CHARACTERS = 80


def test_the_name_of_a_test_has_at_most_80_characters() -> None:
    names = {
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert test_the_name_of_a_test_has_at_most_80_characters.__name__ in names
    assert {name for name in names if len(name) > MOST_CHARACTERS} == set()
