"""The numeric constants of a module with their units and sources, read from its text.

A constant is a number, or a tuple of numbers, under a name in capitals at the top of a module, with a comment

    NAME = value  # unit: source

in its line or in the lines above. This module imports nothing of the package, so that its text can be read and changed
before it is imported.
"""

from __future__ import annotations

import ast
import re
from functools import cached_property
from itertools import takewhile
from typing import Iterator

WORK = "work"  # the kind of a constant that bounds memory, work or a list and decides nothing
_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*$")
_NUMERIC = ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.Name, ast.operator, ast.unaryop, ast.expr_context


class ModuleText:
    """The text of a module of the package."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines in UTF-8, whose bytes the columns of the tree count."""
        return self.text.encode().split(b"\n")

    @property
    def statements(self) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
        """Name, value and statement of each numeric constant."""
        for statement in self.tree.body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
            value = getattr(statement, "value", None)
            if isinstance(target, ast.Name) and _NAME.match(target.id) and value is not None and _is_numeric(value):
                yield target.id, value, statement

    @property
    def imports(self) -> Iterator[tuple[str, str, str]]:
        """Module, name and own name of each import from the package under a name in capitals."""
        for node in _statements(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("npucmp"):
                named = [alias for alias in node.names if _NAME.match(alias.name)]
                yield from ((node.module, alias.name, alias.asname or alias.name) for alias in named)

    def constant(self, name: str, value: ast.expr, statement: ast.stmt) -> tuple[str, str, str, str, str]:
        """Return module (without "npucmp."), name, value, unit and source of a constant."""
        unit, _, source = self._comment(statement).partition(": ")
        return self.name.removeprefix("npucmp."), name, self._between(value), unit.strip(), source.strip()

    def _between(self, value: ast.expr) -> str:
        lines = self.lines[value.lineno - 1 : value.end_lineno]
        lines[-1] = lines[-1][: value.end_col_offset]
        lines[0] = lines[0][value.col_offset :]
        return b"\n".join(lines).decode()

    def _comment(self, statement: ast.stmt) -> str:
        """Return the comment behind a statement, or else the lines of comments above it."""
        behind = self.lines[(statement.end_lineno or 0) - 1][statement.end_col_offset :].strip()
        if behind.startswith(b"#"):
            return _words(behind)
        before = reversed(self.lines[: statement.lineno - 1])
        above = [*takewhile(lambda line: line.startswith(b"#"), before)]
        return " ".join(map(_words, reversed(above)))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in the bodies of a node, without the expressions in them."""
    for field in ("body", "handlers", "orelse", "finalbody"):
        for statement in getattr(node, field, ()):
            yield statement
            yield from _statements(statement)


def _words(comment: bytes) -> str:
    return comment.decode().strip("# ")


def _is_numeric(value: ast.expr) -> bool:
    nodes = [*ast.walk(value)]
    numbers = [node for node in nodes if isinstance(node, ast.Constant)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    is_fitting = all(isinstance(node, _NUMERIC) for node in nodes) and all(_NAME.match(node.id) for node in names)
    return is_fitting and bool(numbers) and all(type(node.value) in (int, float) for node in numbers)
