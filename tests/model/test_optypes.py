"""What spellings of operators are known to be, and what they are not."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from npucmp.localise.conditioning import CONDITIONED
from npucmp.model.optypes import TABLE, TRAITS


def test_the_table_knows_its_own_words():
    assert {trait for row in TABLE for trait in row.traits.split(", ") if trait} <= set(TRAITS)
    assert not [name for name, count in Counter(row.name for row in TABLE).items() if count > 1]


@pytest.mark.lint
def test_nobody_asks_for_a_trait_that_there_is_not():
    asked = {
        argument.value
        for file in (Path(__file__).parents[2] / "npucmp").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "has"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    assert len(asked) > 20 and asked <= set(TRAITS)


def test_what_has_a_condition_number_is_told_by_traits():
    assert set(TRAITS) >= CONDITIONED
