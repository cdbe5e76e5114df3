"""The documentation of a field: the string below it in the source."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache


@cache
def field_docs(section: type) -> dict[str, str]:
    """Return field -> documentation of a dataclass, inherited fields included.

    Python does not keep these strings, so they are read from the source file.
    """
    docs: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if base is not object:
            docs |= _documented_fields(base.__module__).get(base.__name__, {})
    return docs


@cache
def _documented_fields(module: str) -> dict[str, dict[str, str]]:
    """Return class -> field -> documentation for the classes of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _fields_of(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields_of(node: ast.ClassDef) -> dict[str, str]:
    return {
        statement.target.id: inspect.cleandoc(following.value.value)
        for statement, following in zip(node.body, node.body[1:], strict=False)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
        and isinstance(following.value.value, str)
    }
