"""What spellings of operators are known to be, and what they are not."""

from __future__ import annotations

from collections import Counter

import pytest

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
]
MUST_NOT_HAVE = [
    ("softmax", "non-smooth"),
    ("add", "in place"),
    ("relu", "smooth"),
    ("Cast", "copies"),
    ("nobody knows this", "smooth"),
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


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_spelling_is_of_its_row(row):
    assert {op_type(spelling).name for spelling in (row.name, *row.spellings.split())} == {row.name}
