"""The numeric constants that decide what npucmp says: one table, read from the code without importing it.

npucmp/workflows/constants.py describes how a constant is written. The source begins with one word of SOURCES.
`npucmp rule NAME` prints the constants of a rule. judged_again.py measures the effect of half and twice a value.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

from npucmp.workflows.constants import ModuleText

ROOT = Path(__file__).parent.parent.parent
SENSITIVITY = Path(__file__).parent / "sheets" / "sensitivity.json"
ROOMS = "npucmp.judge", "npucmp.localise", "npucmp.flow", "npucmp.align", "npucmp.relations"
OUTER = "report", "workflow", "command"  # modules that show what others decide
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
PLAIN = {0, 1, -1, 2, 0.5}  # numbers that need no name
COLUMNS = range(-3, 4)  # indices that need none: the four figures of a tensor
EXCEPTIONS = {  # (module, function, number) → why that number has no name
    ("align.content_hash", "hash_values", "*"): "the finalizer of splitmix64",
    ("align.shape_match", "merge_leading_axes", 3): "axes",
    ("judge.precision", "is_quantised", 4): "bytes: sums of products of whole numbers have 32 bits",
    ("judge.precision", "terms_summed", 3): "axes of a batched product, whose gradient sums over none",
    ("judge.tolerance", "_spellings", 16): "base of hexadecimal numbers",
    ("localise.evidence", "*", "*"): "how numbers and names are written in words",
    ("localise.intervals", "", 100): "per cent",
    ("localise.root_order", "", "*"): "the order of causes",
    ("localise.rules", "", 100): "per cent",
    ("localise.conditioning", "_of_forward", 3): "operands of a product: two, and an addend",
    ("localise.parameter_drift", "_is_scaled", 3): "the figures that were compared, all of them",
    ("localise.effective_precision", "", 256): "size of a cache",
    ("relations.frameworks.contents.axis_orders", "words", "*"): "axes",
    ("relations.frameworks.contents.axis_orders", "", 3): "axes",
    ("relations.frameworks.turned_axes", "_turned_run", 3): "axes of more than a matrix",
    ("relations.ranks.lane_match", "_share_by_figures", 3): "columns: the norm of a tensor",
    ("relations.ranks.placement", "_apart", 3): "columns: the norm of a tensor",
    ("relations.ranks.placement", "_complexity", "*"): "the order of placements, the simplest first",
    ("relations.token_records", "record_of", 4): "axes of a mask",
    ("relations.tokens.token_axes", "_fits", 4): "axes: batch, heads, sequence, width",
    ("relations.tokens.token_lengths", "*", 4): "axes of a mask",
    ("relations.weights.expert_order", "_recorded_map", 3): "axes: layers and experts at most",
    ("relations.weights.parts", "_qkv_rows", 3): "parts: q, k and v",
    ("relations.weights.structure", "holds_turned_experts", 3): "axes of stacked matrices",
    ("relations.weights.structure", "_places", 3): "numbers in the name of a rank: tensor, pipeline, experts",
}


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


class Module(ModuleText):
    """A module of the package as it stands in its file."""

    def __init__(self, path: Path) -> None:
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        super().__init__(name, path.read_text(encoding="utf-8"))

    @property
    def literals(self) -> Iterator[Literal]:
        """The numbers that stand in expressions, but PLAIN ones and columns."""
        own = {id(one) for _, _, statement in self.statements for one in ast.walk(statement)}
        for function, node, is_index in _walk(self.tree):
            if not isinstance(node, ast.Constant) or type(node.value) not in (int, float) or id(node) in own:
                continue
            if node.value not in PLAIN and not (is_index and node.value in COLUMNS):
                text = self.lines[node.lineno - 1].decode().strip()
                yield Literal(self.name, function, node.value, node.lineno, text)


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
    inside = name in ROOMS or name.startswith(tuple(f"{room}." for room in ROOMS))
    return name in MODULES or (inside and name.rpartition(".")[2] not in OUTER)


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
            short = tuple(sorted(user.removeprefix("npucmp.") for user in own))
            found.append(Constant(*place.constant(name, value, statement), users=short))
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
