"""The conditions under which a method reaches its calls of a function, by its source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator


def conditions_of(
    method: ast.AST, is_looked_for: Callable[[ast.expr], bool]
) -> Iterator[Iterator[tuple[ast.expr, bool]]]:
    """For each call of a function: the conditions under which it is reached, and whether each has to hold.

    Args:
        is_looked_for: whether an expression that is called names the function.
    """
    parents = {child: node for node in ast.walk(method) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and is_looked_for(node.func):
            yield _conditions(node, parents)


def _conditions(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[tuple[ast.expr, bool]]:
    while (above := parents.get(node)) is not None:
        if isinstance(above, ast.If | ast.IfExp) and node is not above.test:
            otherwise = above.orelse if isinstance(above.orelse, list) else [above.orelse]
            yield above.test, node not in otherwise
        node = above
