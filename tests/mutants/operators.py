"""The places of a module where a fault can be planted, and the text of the faulty module."""

from __future__ import annotations

import ast
import difflib
from functools import cache
from typing import Callable, Iterator, NamedTuple, Optional

FLIPPED = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPERATORS = ("comparison", "boundary", "constant", "and/or", "not", "return", "branch", "arguments")


class Mutant(NamedTuple):
    """One fault: the operator that made it, the lines that it replaces, and the text of the module."""

    operator: str
    line: int
    end: int
    before: str
    after: str
    text: str

    def diff(self, path: str) -> str:
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), path, path, n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


class Place(NamedTuple):
    """A place for a fault; its text is made when it is drawn."""

    operator: str
    line: int
    make: Callable[[], Mutant]


def places_of(text: str) -> list[Place]:
    """Return every place of a module for a fault, in the order of its lines."""
    found = [place for node in _nodes(ast.parse(text)) for place in _of(node, text)]
    return sorted(found, key=lambda one: (one.line, one.operator))


def mutant_at(place: Place) -> Optional[Mutant]:
    """Return the fault of a place; None where it is no module, as in a formatted string, or changes nothing."""
    found = place.make()
    if found.before == found.after:
        return None
    try:
        compile(found.text, "mutant", "exec")
    except SyntaxError:
        return None
    return found


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run: no annotations, decorators, and no blocks for type checkers."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or (isinstance(child, ast.If) and _is_for_types(child.test)):
                continue
            yield child
            yield from _nodes(child)


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _of(node: ast.AST, text: str) -> Iterator[Place]:
    def place(operator: str, made: ast.AST) -> Place:
        return Place(operator, _place(node)[0], lambda: _spliced(operator, node, made, text))

    if isinstance(node, ast.Compare):
        for at, one in enumerate(node.ops):
            for name, table in (("comparison", FLIPPED), ("boundary", BOUNDARY)):
                if type(one) in table:
                    ops = [*node.ops[:at], table[type(one)](), *node.ops[at + 1 :]]
                    yield place(name, ast.Compare(node.left, ops, node.comparators))
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float) and not _bounds_work(node, text):
        yield from (place("constant", ast.Constant(value)) for value in _other_numbers(node.value))
    elif isinstance(node, ast.BoolOp):
        yield place("and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield place("not", node.operand)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_empty(node.value):
        yield place("return", ast.Return(_empty(node.value)))
    elif isinstance(node, ast.If):
        first, last = node.body[0], node.body[-1]
        yield Place("branch", first.lineno, lambda: _replaced("branch", first, last, "pass", text))
    elif isinstance(node, ast.Call) and _can_swap(node.func, node.args):
        yield place("arguments", ast.Call(node.func, [*node.args[1::-1], *node.args[2:]], node.keywords))


def _bounds_work(node: ast.Constant, text: str) -> bool:
    """Whether a constant only bounds the work, by the comment in its line: any other number would do."""
    return ": work" in _lines(text)[node.lineno - 1].partition("#")[2]


@cache
def _lines(text: str) -> list[str]:
    return text.splitlines()


def _can_swap(function: ast.expr, arguments: list[ast.expr]) -> bool:
    """Whether the first two arguments have an order; the smallest and the largest of numbers have none."""
    if len(arguments) < 2 or any(isinstance(one, ast.Starred) for one in arguments):
        return False
    name = (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )
    if name in ("max", "min", "maximum", "minimum"):
        return False
    return ast.dump(arguments[0]) != ast.dump(arguments[1])


def _other_numbers(value: int | float) -> list[int | float]:
    if isinstance(value, float):
        return [value * 2 if value else 1.0]
    return [value + 1, value - 1] if value else [1]


def _is_empty(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value in (None, False)


def _empty(value: ast.expr) -> ast.expr:
    """Return the empty value of the same kind where it shows its kind, else None."""
    kinds = {ast.List: ast.List([]), ast.ListComp: ast.List([]), ast.Dict: ast.Dict([], []), ast.Tuple: ast.Tuple([])}
    kinds |= {ast.DictComp: ast.Dict([], []), ast.JoinedStr: ast.Constant(""), ast.Compare: ast.Constant(False)}
    return kinds.get(type(value), ast.Constant(None))


def _spliced(operator: str, node: ast.AST, made: ast.AST, text: str) -> Mutant:
    words = ast.unparse(made)
    return _replaced(operator, node, node, f"({words})" if isinstance(made, (ast.BoolOp, ast.Compare)) else words, text)


def _replaced(operator: str, first: ast.AST, last: ast.AST, words: str, text: str) -> Mutant:
    lines = text.splitlines(keepends=True)
    start, end = _place(first), _place(last, "end_")
    before = "".join(lines[start[0] - 1 : end[0]])
    head = lines[start[0] - 1].encode()[: start[1]].decode()
    after = head + words + lines[end[0] - 1].encode()[end[1] :].decode()
    whole = "".join(lines[: start[0] - 1]) + after + "".join(lines[end[0] :])
    return Mutant(operator, start[0], end[0], before, after, whole)


def _place(node: ast.AST, prefix: str = "") -> tuple[int, int]:
    return getattr(node, f"{prefix}lineno"), getattr(node, f"{prefix}col_offset")
