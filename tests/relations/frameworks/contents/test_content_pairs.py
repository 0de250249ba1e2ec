"""Pairs of contents: which ones stand beside each other, and how far two contents are apart."""

from __future__ import annotations

from npucmp.model.relation import SAME_ORDER, AxisOrder
from tests.relations.frameworks.contents.memory import NOISE, drawn, pairs_in_memory, recorded

TURN = AxisOrder((1, 0))
X = drawn(0, 4, 6)


def of_two(x, y, noise=NOISE):
    """Pairs of two runs with one content each."""
    return pairs_in_memory([("relu", [x], [])], [("relu", [y], [])], noise=noise)


def tensors_of(pairs):
    return pairs.target.contents[0].tensor, pairs.golden.contents[0].tensor


def tensor_order(x, y, orders=(), strict=True, noise=NOISE):
    pairs = of_two(x, y, noise)
    return pairs.tensor_order(*tensors_of(pairs), pairs.shapes(0, 0), orders, strict)


def test_tensors_without_values_have_the_first_order_if_they_need_not_agree():
    for x, y in ((recorded(X), X), (X, recorded(X))):
        assert tensor_order(x, y, [TURN, SAME_ORDER]) is None
        assert tensor_order(x, y, [TURN, SAME_ORDER], strict=False) == TURN
        assert tensor_order(x, y, strict=False) == SAME_ORDER
