"""The numeric constants that decide what npucmp says: one table, read from the code without importing it.

A constant is a number, or a tuple of numbers, under a name in capitals at the top of a module, with a comment

    NAME = value  # unit: source

in its line or in the lines above. The source begins with one word of SOURCES. rules_page.py writes the table into
docs/rules.md. judged_again.py measures the effect of half and twice a value.
"""

from __future__ import annotations

import ast
import json
import re
import tokenize
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Iterator, NamedTuple, Optional, Sequence

ROOT = Path(__file__).parent.parent.parent
SENSITIVITY = Path(__file__).parent / "sheets" / "sensitivity.json"
ROOMS = "npucmp.judge", "npucmp.localise", "npucmp.flow"
MODULES = (
    "npucmp.measure.recorded_stats",
    "npucmp.measure.hidden_masks",
    "npucmp.measure.constant_rows",
    "npucmp.measure.own_products",
    "npucmp.measure.equal_steps",
)
SOURCES = {
    "definition": "follows from a type, a formula or a format",
    "literature": "published",
    "evidence": "measured; the docstring of its module has the figures",
    "chosen": "by judgement, not measured",
    "work": "bounds memory, work or a list; decides no verdict",
}
UNREAD, NOTHING = "not read", "nothing"
KINDS = {
    "changes": "a grade of a pair changes",
    NOTHING: "no grade changes",
    UNREAD: "no pair reads it",
    "": "not measured: it is new, or has another value since",
}
PLAIN = {0, 1, -1, 2, 0.5}  # numbers that need no name
COLUMNS = range(-3, 4)  # indices that need none: the four figures of a tensor
EXCEPTIONS = {  # (module, function, number) → why that number has no name
    ("judge.precision", "is_quantised", 4): "bytes: sums of products of whole numbers have 32 bits",
    ("judge.precision", "terms_summed", 3): "axes of a batched product, whose gradient sums over none",
    ("judge.tolerance", "_spellings", 16): "base of hexadecimal numbers",
    ("localise.evidence", "*", "*"): "how numbers and names are written in words",
    ("localise.intervals", "", 100): "per cent",
    ("localise.multi_rank", "", "*"): "the order of causes",
    ("localise.recorded_graph", "*", 6): "columns of a table",
    ("localise.rules.facts", "", 100): "per cent",
    ("localise.conditioning", "_of_forward", 3): "operands of a product: two, and an addend",
    ("localise.parameter_drift", "_is_scaled", 3): "the figures that were compared, all of them",
    ("localise.effective_precision", "", 256): "size of a cache",
    ("measure.recorded_stats", "lower_bounds", 4): "the four figures of a tensor",
}
_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*$")
_NUMERIC = ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.Name, ast.operator, ast.unaryop, ast.expr_context


class Constant(NamedTuple):
    """A row of the table. `users` are the other modules of npucmp that import it, `module` without "npucmp."."""

    module: str
    name: str
    value: str
    unit: str
    source: str
    users: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The first word of the source."""
        return re.split(r"\W", self.source, maxsplit=1)[0]


class Literal(NamedTuple):
    """A number in an expression that is no constant."""

    module: str
    function: str
    number: float
    line: int
    text: str


class Module:
    """A module of the package as it stands in its file."""

    def __init__(self, path: Path) -> None:
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def comments(self) -> dict[int, str]:
        """The comments by line."""
        tokens = tokenize.generate_tokens(StringIO(self.text).readline)
        return {one.start[0]: one.string.lstrip("# ") for one in tokens if one.type == tokenize.COMMENT}

    @property
    def statements(self) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
        """Name, value and statement of each numeric constant."""
        for one in self.tree.body:
            target = one.targets[0] if isinstance(one, ast.Assign) else getattr(one, "target", None)
            value = getattr(one, "value", None)
            if isinstance(target, ast.Name) and _NAME.match(target.id) and value is not None and _is_numeric(value):
                yield target.id, value, one

    @property
    def imports(self) -> Iterator[tuple[str, str, str]]:
        """Module, name and own name of what is imported from the package under names in capitals."""
        for one in ast.walk(self.tree):
            if isinstance(one, ast.ImportFrom) and one.module and one.module.startswith("npucmp"):
                named = [each for each in one.names if _NAME.match(each.name)]
                yield from ((one.module, each.name, each.asname or each.name) for each in named)

    def constant(self, name: str, value: ast.expr, statement: ast.stmt) -> Constant:
        """One row without its users."""
        unit, _, source = self._comment(statement).partition(": ")
        return Constant(self.name, name, ast.get_source_segment(self.text, value) or "", unit.strip(), source.strip())

    def _comment(self, statement: ast.stmt) -> str:
        last = statement.end_lineno or statement.lineno
        if last in self.comments:
            return self.comments[last]
        lines, above = self.lines, []
        line = statement.lineno - 1
        while line and lines[line - 1].startswith("#"):
            above.append(self.comments[line])
            line -= 1
        return " ".join(reversed(above))

    @property
    def literals(self) -> Iterator[Literal]:
        """The numbers that stand in expressions, but PLAIN ones and columns."""
        own = {id(one) for _, _, statement in self.statements for one in ast.walk(statement)}
        for function, node, is_index in _walk(self.tree):
            if not isinstance(node, ast.Constant) or type(node.value) not in (int, float) or id(node) in own:
                continue
            if node.value not in PLAIN and not (is_index and node.value in COLUMNS):
                text = self.lines[node.lineno - 1].strip()
                yield Literal(self.name, function, node.value, node.lineno, text)


def _is_numeric(value: ast.expr) -> bool:
    nodes = [*ast.walk(value)]
    numbers = [one for one in nodes if isinstance(one, ast.Constant)]
    names = [one for one in nodes if isinstance(one, ast.Name)]
    fitting = all(isinstance(one, _NUMERIC) for one in nodes) and all(_NAME.match(one.id) for one in names)
    return fitting and bool(numbers) and all(type(one.value) in (int, float) for one in numbers)


def _walk(node: ast.AST, function: str = "", is_index: bool = False) -> Iterator[tuple[str, ast.AST, bool]]:
    """All nodes with the function that they stand in, and whether they are an index; without decorators, which are
    sizes of caches."""
    yield function, node, is_index
    if isinstance(node, ast.FunctionDef):
        function = node.name
    for field, value in ast.iter_fields(node):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST) and field != "decorator_list":
                inside = is_index or (isinstance(node, ast.Subscript) and field == "slice")
                yield from _walk(one, function, inside)


def modules() -> list[Module]:
    """All modules of the package."""
    return [Module(path) for path in sorted((ROOT / "npucmp").rglob("*.py"))]


def is_judging(name: str) -> bool:
    """Whether a module decides verdicts or causes."""
    return name in MODULES or name.startswith(tuple(f"{room}." for room in ROOMS)) or name in ROOMS


def constants(some: Optional[list[Module]] = None) -> list[Constant]:
    """All constants of the judging modules, and those that they import from elsewhere."""
    some = modules() if some is None else some
    defined = {(one.name, name): (one, name, *rest) for one in some for name, *rest in one.statements}
    passed = {(one.name, own): (source, name) for one in some for source, name, own in one.imports}
    users: dict[tuple[str, str], set[str]] = {}
    for (module, _), origin in passed.items():
        while origin not in defined and origin in passed:
            origin = passed[origin]
        users.setdefault(origin, set()).add(module)
    found = []
    for key, (place, name, value, statement) in defined.items():
        own = users.get(key, set())
        if is_judging(place.name) or any(map(is_judging, own)):
            one = place.constant(name, value, statement)
            short = tuple(sorted(user.removeprefix("npucmp.") for user in own))
            found.append(one._replace(module=one.module.removeprefix("npucmp."), users=short))
    return found


def unnamed(some: Optional[list[Module]] = None) -> list[Literal]:
    """The numbers of the judging modules that have no name and are no exception."""
    some = modules() if some is None else some
    found = [one for module in some if is_judging(module.name) for one in module.literals]
    found = [one._replace(module=one.module.removeprefix("npucmp.")) for one in found]
    return [one for one in found if not any(key in EXCEPTIONS for key in keys(one))]


def keys(one: Literal) -> list[tuple[object, ...]]:
    """The keys of EXCEPTIONS that cover a number."""
    return [(one.module, function, number) for function in (one.function, "*") for number in (one.number, "*")]


class Measured(NamedTuple):
    """What a constant at half and at twice its value changes, in words; empty where that was not measured."""

    half: str = ""
    twice: str = ""

    @property
    def kind(self) -> str:
        """A word of KINDS."""
        both = {self.half, self.twice}
        return next((one for one in ("", UNREAD, NOTHING) if both == {one}), "changes")


def measured(rows: Sequence[Constant]) -> dict[Constant, Measured]:
    """What was measured of constants at the values that they have now."""
    known = json.loads(SENSITIVITY.read_text(encoding="utf-8"))["constants"]
    found = {}
    for one in rows:
        said = known.get(f"{one.module}.{one.name}", {})
        found[one] = Measured(said["half"], said["twice"]) if said.get("value") == one.value else Measured()
    return found


def pairs_measured() -> tuple[int, int]:
    """The numbers of pairs with a fault and of clean pairs that were judged with other values."""
    pairs = json.loads(SENSITIVITY.read_text(encoding="utf-8"))
    return pairs["faults"], pairs["clean"]
