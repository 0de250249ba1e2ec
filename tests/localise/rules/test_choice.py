"""Masks and indices."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule, without_values

RULE = rule("choice")

normal, noisy = drawn(__name__)

X = normal(64, 64)
INDEX = np.arange(4096)
FEW, MANY = INDEX.copy(), INDEX[::-1].copy()
FEW[[3, 4, 5]] = FEW[[5, 3, 4]]
TWO = INDEX.copy()
TWO[[3, 4]] = TWO[[4, 3]]


class TestChoice(RuleContract):
    name = "choice"
    fires = {
        "near ties": case("argsort", [(noisy(X, 1e-6), X)], (FEW, INDEX, "int64")),
        "any, under errors of 16 bits": case("topk", [(noisy(X, 1e-3), X)], (MANY, INDEX, "int64")),
        "a mask": case("gt", [(noisy(X, 1e-3), X)], (FEW > 4, INDEX > 4, "bool")),
    }
    silent = {
        "too many": case("argsort", [(noisy(X, 1e-6), X)], (MANY, INDEX, "int64")),
        "nothing came in": case("argsort", [(X, X)], (FEW, INDEX, "int64")),
        "nothing came in, and two elements differ": case("argsort", [(X, X)], (TWO, INDEX, "int64")),
        "numbers": case("sort", [(noisy(X, 1e-3), X)], (noisy(X, 1e-3), X)),
    }


def chosen(differing, error, count=64, **more):
    """So many of the indices differ."""
    golden = np.arange(count)
    return case("topk", [ones(9)], (golden + (golden < differing), golden, "int64"), input_error=error, **more)


U11 = 2.0**-11


@pytest.mark.parametrize("differing, error, bound", [
    (4, 2.0**-16, inf), (5, 2.0**-16, 0.0), (6, 2.0**-14, inf), (7, 2.0**-14, 0.0),  # 8 √e, and two
    (64, U11, 0.0), (64, 1.001 * U11, inf), (2, 0.0, inf), (3, 0.0, 0.0),
])  # fmt: skip
def test_an_error_flips_a_share_of_its_root(differing, error, bound):
    """Two elements may flip in any tensor."""
    assert RULE.bound(chosen(differing, error)) == bound


@pytest.mark.parametrize("differing, error, limit, bound", [
    (34, 0.1, 0.1, inf), (35, 0.1, 0.1, 0.0), (34, 0.11, 0.1, 0.0), (34, 0.0, 0.0, 0.0), (34, None, 0.1, 0.0),
])  # fmt: skip
def test_half_of_the_places_may_be_ties_if_the_values_agree(differing, error, limit, bound):
    one = chosen(differing, 2.0**-30)
    value = case("topk", [], ones(64)).finding._replace(error=error, limit=limit)
    one.node.outputs.append(value)
    assert RULE.bound(one) == bound
    assert RULE.bound(replace(one, node=None)) == 0.0


def test_choices_without_values_may_not_flip():
    for one in (
        replace(chosen(1, 0.1), finding=without_values(chosen(1, 0.1).finding)),
        case("topk", [], (np.array([nan, 1.0]), np.ones(2)), input_error=0.1),
        case("topk", [], (np.ones(0), np.ones(0), "int64"), input_error=0.1),
    ):
        assert RULE.bound(one) == 0.0


@pytest.mark.parametrize(
    "error, dtype, applies", [(1e-9, "int64", True), (0.0, "int64", False), (1e-9, "float32", False)]
)
def test_choices_flip_if_an_error_came_in(error, dtype, applies):
    assert RULE.applies(case("topk", [], (*ones(9), dtype), input_error=error)) == applies


@pytest.mark.parametrize("differing, count, given, bound", [
    (1, 63, True, 0.0), (1, 63, False, inf), (2, 64, True, inf), (0, 63, True, inf),
])  # fmt: skip
def test_a_label_of_a_small_batch_is_no_near_tie(differing, count, given, bound):
    assert RULE.bound(chosen(differing, 1e-9, count, no_producer=given)) == bound
