"""One table of operators: what it says, that all of it is asked for, and that nobody else knows an operator by name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Iterator

import pytest

from npucmp.model.optypes import TABLE, TRAITS

PACKAGE = Path(__file__).parent.parent.parent / "npucmp"
OPTYPES = PACKAGE / "model" / "optypes.py"
KNOWS = OPTYPES, PACKAGE / "model" / "arguments.py"  # what operators are, and what their arguments are called
REVIEWED = {  # (module, word): why it may stand there
    **{("model/relation.py", word): "how the parts of ranks make a tensor" for word in ("sum", "mean", "max", "norm")},
    ("relations/ranks/partial_sums.py", "norm"): "how the parts of ranks make a tensor, and what makes one of them",
    ("relations/ranks/placement.py", "mean"): "how the parts of ranks make a tensor",
    ("relations/ranks/placement_search.py", "mean"): "how the parts of ranks make a tensor",
    ("dump/graphs/onnx.py", "Placeholder"): "what a GraphDef calls an input of the graph",
    ("dump/graphs/graphdef.py", "Copy"): "what tfdbg puts in, known by its name as well",
    ("comparability/settings.py", "top_k"): "a sampling setting of an engine",
    ("commands/compare.py", "layer_norm"): "an example in a help text",
    ("commands/show.py", "layer_norm"): "an example in a help text",
    ("fusion/workflow.py", "TransData"): "an example in a note for the user",
    ("recompute/arguments.py", "float"): "a type of Python, as records name it",
    ("recompute/arguments.py", "slice"): "a type of Python, as records name it",
    ("health/rule.py", "BatchNorm"): "a word of a sentence for the user",
    ("health/rule.py", "ReLU"): "a word of a sentence for the user",
    ("health/rules/outputs.py", "DivNoNan"): "a remedy",
    ("health/rules/activations.py", "ReLU"): "a word of a sentence for the user",
    ("health/rules/losses.py", "log_softmax"): "a remedy",
    ("health/rules/modes.py", "BatchNorm"): "a word of a sentence for the user",
    ("relations/weights/conventions/bert.py", "LayerNorm"): "a part of the name of a parameter",
    ("relations/weights/conventions/megatron.py", "layer_norm_"): "a part of the name of a parameter",
    ("relations/weights/parts.py", "Conv1D"): "the layout of a weight, in words",
    ("token_parity/report.py", "top_k"): "a setting of a sampler, in words",
}
CALLED = {  # modules that make calls again, or name them to a tool: they know functions by name
    "dump/readers/msprobe_config.py": "which calls msprobe leaves out",
    "recompute/table.py": "which function a call is",
    "recompute/numpy_table.py": "which formula an operator of a graph is",
    "recompute/call_table.py": "which formula a function is",
    "recompute/rounding_noise.py": "which of torch's primitives round",
    "recompute/data_flow.py": "places of arguments in a signature",
    "recompute/torch_functions.py": "functions that write into their arguments, or are taken by their formula",
    "recompute/case_files.py": "which functions a script has to call otherwise",
    "recompute/replayed_rows.py": "functions whose bias may be added after rounding",
    "recompute/hypotheses.py": "places of arguments in a signature",
}
KINDS = {"sum", "dropout", "index_add", "scatter_add"}  # of the table's lines: how a call is treated


def key(spelling: str) -> str:
    return spelling.replace("_", "").lower()


SPELLINGS = Counter(key(one) for row in TABLE for one in (row.name, *row.spellings.split()))


def test_every_spelling_is_in_one_row_only() -> None:
    assert [one for one, times in SPELLINGS.items() if times > 1] == []


@pytest.mark.lint
def test_traits_are_declared_told_and_asked_for() -> None:
    in_table = {trait for row in TABLE for trait in row.traits.split(", ") if trait}
    assert in_table <= set(TRAITS)
    asked = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "has":
                asked |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    assert asked == set(TRAITS)


WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
SEVERAL = re.compile(r"[a-z0-9](_[a-z0-9]|[A-Z])")  # words in one: masked_fill, TransData
OF_OPERATORS = {"op_type", "kind", "op"}  # what is compared with the name of an operator


def literals(tree: ast.AST) -> Iterator[str]:
    """Texts, those within others too, but what stands alone as a statement: documentation."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def names_of_operators(tree: ast.AST) -> Iterator[str]:
    """Spellings of several words in any text, and of one word where an operator is compared with them."""
    for text in literals(tree):
        yield from (word for word in WORD.findall(text) if SEVERAL.search(word) and key(word) in SPELLINGS)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if OF_OPERATORS & {getattr(one, "attr", getattr(one, "id", "")) for one in sides}:
                yield from (text for one in sides for text in literals(one) if key(text) in SPELLINGS)


@pytest.mark.lint
def test_nobody_else_knows_operators_by_name() -> None:
    found = {
        (file.relative_to(PACKAGE).as_posix(), word)
        for file in PACKAGE.rglob("*.py")
        if file not in KNOWS
        for word in names_of_operators(ast.parse(file.read_text("utf-8")))
        if not (file.parent.name == "recompute" and word in KINDS)
    }
    assert {module for module, _ in found} >= set(CALLED), "no longer needed: strike it off the list"
    found = {(module, word) for module, word in found if module not in CALLED}
    assert found - set(REVIEWED) == set(), "ask npucmp.model.optypes for a trait"
    assert set(REVIEWED) - found == set(), "no longer there: strike it off the list"


@pytest.mark.parametrize(
    "code", ['X = {"TransData"}', 're.compile("(MaskedFill|ReadVariableOp)")', 'op.op_type in ("Cast", "Print")']
)
def test_the_search_finds_such_names(code: str) -> None:
    assert list(names_of_operators(ast.parse(code)))
