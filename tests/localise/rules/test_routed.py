"""Rows that were chosen otherwise."""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest

from npucmp.flow.operators import OperatorFindings
from npucmp.localise.rule_context import RuleContext
from npucmp.localise.rules.explanations import share_of_rows
from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict
from tests.localise.rules.craft import RuleContract, case, drawn, rule, without_values

RULE = rule("routed")

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
OTHER = np.where(np.arange(64)[:, None] == 7, normal(64, 64), Y)
PLACES = np.arange(64)
MOVED = np.where((PLACES > 20) & (PLACES < 26), PLACES + 1, PLACES)  # one row more before them, one less behind


def shapes(target, golden, **more):
    """A tensor of an expert, which has another number of rows."""
    refs = TensorRef("output:0", "float32", target), TensorRef("output:0", "float32", golden)
    operators = [Operator("linear.0", "linear", "linear", "forward", 0, (ref,)) for ref in refs]
    pair = Pair(0, "output:0", *operators, *refs, "name", 1.0)
    found = Finding(Measurement(pair, shapes_differ=True), Verdict.SHAPE, "shape", float("inf"))
    return RuleContext(found, OperatorFindings(pair, [], [found]), **more)


class TestRouted(RuleContract):
    name = "routed"
    fires = {
        "a row more": shapes((59, 32), (58, 32), changed_choice_share=0.01),
        "with the errors of 16 bits any choice may fall otherwise": shapes((59, 32), (58, 32), input_error=3e-3),
        "one row is another": case("index_select", [(X, X)], (OTHER, Y), input_error=1e-6, changed_choice_share=0.02),
        "as many rows as the indices that differ": case(
            "index_select",
            [(X, X), (MOVED, PLACES, "int64")],
            (X[MOVED], X[PLACES]),
            input_error=1e-6,
            changed_choice_share=1e-4,
        ),
        "ones at as many places as the indices that differ": case(
            "OneHot", [(MOVED, PLACES, "int64")], (np.eye(64)[MOVED], np.eye(64)), input_error=1e-6
        ),
        "it came from nowhere": case("tanh", [], (OTHER, Y), input_error=1e-6, node=False, changed_choice_share=0.02),
    }
    silent = {
        "nothing was chosen": shapes((59, 32), (58, 32)),
        "two axes": shapes((59, 32), (58, 64), changed_choice_share=0.01),
        "another number of axes": shapes((59, 32), (59, 32, 1), changed_choice_share=0.01),
        "another number of axes and of rows": shapes((59, 32), (58, 32, 1), changed_choice_share=0.01),
        "half of the rows": shapes((59, 32), (30, 32), input_error=3e-5),
        "more rows than fell otherwise": case(
            "index_select", [(X, X)], (noisy(Y, 0.9), Y), input_error=1e-6, changed_choice_share=0.02
        ),
        "no operator that picks": case("tanh", [(X, X)], (OTHER, Y), input_error=1e-6, changed_choice_share=0.02),
    }


@pytest.mark.parametrize("target, golden, share", [
    ((60, 32), (45, 32), 0.25), ((45, 32), (60, 32), 0.25), ((60,), (45,), 0.25), ((4, 60), (4, 45), 0.25),
    ((60, 32), (60, 32), 0.0), ((60, 32), (45, 16), 0.0), ((60, 32), (45, 32, 1), 0.0), ((), (), 0.0),
])  # fmt: skip
def test_the_share_of_rows_is_that_of_the_one_axis_that_differs(target, golden, share):
    finding = shapes(target, golden).finding
    assert share_of_rows(finding) == share
    for side in ("target", "golden"):
        pair = finding.pair._replace(**{side: None})
        assert share_of_rows(finding._replace(measurement=finding.measurement._replace(pair=pair))) == 0.0


U11 = 2.0**-11


@pytest.mark.parametrize("error, share, changed, applies", [
    (0.0, 0.01, 0.001, True), (0.0, 0.01, 0.0, False), (U11, 0.1, 0.0, False), (1.01 * U11, 0.1, 0.0, True),
    (2.0**-10, 0.25, 0.0, True), (2.0**-10, 0.26, 0.0, False), (2.0**-10, 0.5, 1e-9, True),
    (2.0**-10, 0.0, 0.1, False),
])  # fmt: skip
def test_another_number_of_rows_was_chosen_if_choices_flipped(error, share, changed, applies):
    """An error e of 16 bits flips a share of 8 √e."""
    one = shapes((100 - round(100 * share), 32), (100, 32), input_error=error, changed_choice_share=changed)
    assert RULE.applies(one) == applies and (not applies or RULE.bound(one) == inf)


OTHER_ROWS = (OTHER, Y)


@pytest.mark.parametrize("op, more, applies", [
    ("index_select", {}, True), ("tanh", {}, False), ("tanh", {"node": False}, True),
    ("index_select", {"node": False}, True),
    ("linear", {"node": False, "slot": "input:1"}, False),
    ("linear", {"node": False, "slot": "input:0"}, True),
])  # fmt: skip
def test_rows_that_were_chosen_or_came_from_nowhere_may_be_others(op, more, applies):
    one = case(op, [(X, X)], OTHER_ROWS, changed_choice_share=0.01, **more)
    assert RULE.applies(one) == applies and not RULE.applies(replace(one, changed_choice_share=0.0))


def test_indices_that_agree_chose_the_same_rows():
    for indices, applies in (((PLACES, PLACES, "int64"), False), ((MOVED, PLACES, "int64"), True)):
        assert RULE.applies(case("index_select", [(X, X), indices], OTHER_ROWS, changed_choice_share=0.01)) == applies


@pytest.mark.parametrize("indices, share", [([], 0.01), ([MOVED], 5 / 64), ([PLACES, MOVED], 5 / 64)])
def test_the_bound_is_four_roots_of_the_share_of_other_rows(indices, share):
    """There is none if no more elements differ than the other indices move."""
    read = [(X, X), *((one, PLACES, "int64") for one in indices)]
    moved = any(one is MOVED for one in indices)
    one = case("index_select", read, OTHER_ROWS, changed_choice_share=0.01)
    assert RULE.bound(one) == (inf if moved else 4 * sqrt(share))
    one = case("index_select", read, (X, Y), changed_choice_share=0.01)
    assert RULE.bound(one) == 4 * sqrt(share)
    one = case("index_select", read, OTHER_ROWS, changed_choice_share=0.01)
    assert RULE.bound(replace(one, node=None)) == 4 * sqrt(0.01)
    one.node.inputs[:] = map(without_values, one.node.inputs)
    assert RULE.bound(one) == 4 * sqrt(0.01)
