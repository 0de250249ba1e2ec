"""What spellings of operators are known to be, and what they are not."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from npucmp.localise.conditioning import CONDITIONED
from npucmp.model.optypes import TABLE, TRAITS, op_type

MUST_HAVE = [
    ("SoftmaxV2", "exponential"),
    ("aten::_softmax.int", "exponential"),
    ("ReduceMeanD", "sums"),
    ("native_layer_norm_backward", "gradient"),
    ("Conv2DBackpropFilterD", "contracts"),
    ("__iadd__", "in place"),
    ("HcomAllReduce", "sums ranks"),
    ("TransData", "hands on"),
    ("npu_scaled_masked_softmax", "masks"),
    ("dropout_c", "drops"),
    ("attn_dropout_1_2", "drops"),
    ("normal_b", "random"),
    ("layer_norm_a", "centres"),
]
MUST_NOT_HAVE = [
    ("softmax", "non-smooth"),
    ("add", "in place"),
    ("relu", "smooth"),
    ("Cast", "copies"),
    ("nobody knows this", "smooth"),
    ("log_normalize_a", "random"),
    ("t_1", "views"),
    ("", "gradient"),
]


@pytest.mark.parametrize("spelling, trait", MUST_HAVE)
def test_must_have(spelling, trait):
    assert op_type(spelling).has(trait)


@pytest.mark.parametrize("spelling, trait", MUST_NOT_HAVE)
def test_must_not_have(spelling, trait):
    assert not op_type(spelling).has(trait)


def test_the_table_knows_its_own_words():
    assert {trait for row in TABLE for trait in row.traits.split(", ") if trait} <= set(TRAITS)
    assert not [name for name, count in Counter(row.name for row in TABLE).items() if count > 1]


def test_every_spelling_is_of_its_row():
    spelled = [(row.name, spelling) for row in TABLE for spelling in (row.name, *row.spellings.split())]
    assert [(op_type(spelling).name, spelling) for _, spelling in spelled] == spelled


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
