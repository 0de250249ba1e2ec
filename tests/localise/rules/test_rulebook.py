"""The rules in force, and what those of one kind decide together."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from npucmp import RULES
from npucmp.errors import UsageError
from npucmp.judge.precision import Precision
from npucmp.localise.rules import Rulebook
from tests.localise.rules.craft import case, ones, without_values

U = 2.0**-24


def tanh(error, came, **more):
    return case("tanh", [ones(9)], ones(64, *[error, -error] * 32), input_error=came, **more)


@pytest.mark.parametrize("skip, alike, used", [
    ((), False, {"reduced": True, "reduced_alike": False}),
    ((), True, {"reduced": True, "reduced_alike": True}),
    (("reduced_alike",), True, {"reduced_alike": False}),
    (("law", "copy"), False, {"law": False, "copy": False, "given": True}),
])  # fmt: skip
def test_all_rules_are_in_force_but_those_that_are_skipped(skip, alike, used):
    """Products of 11 bits on both sides are found by their values."""
    rules = Rulebook(skip, alike)
    assert {name: rules.uses(name) for name in used} == used
    left_out = {*skip} | ({"reduced_alike"} if not alike else set())
    assert [*rules.rules] == [rule.name for rule in RULES if rule.name not in left_out]
    assert not rules.uses("unheard")


def test_an_unknown_rule_is_a_mistake_with_close_names():
    with pytest.raises(UsageError, match="no rule 'lost_tiles'") as raised:
        Rulebook(["law", "lost_tiles"])
    assert raised.value.near[0] == "lost_tile"
    with pytest.raises(UsageError) as raised:
        Rulebook(["x" * 90])
    assert "x" * 59 in str(raised.value) and "x" * 60 not in str(raised.value)


@pytest.mark.parametrize("precision, value, name", [
    (Precision(), 0.0, ""), (Precision(U), 8 * U, "round_off"),
    (Precision(U, reduced=True), 2.0**-8, "reduced"),
    (Precision(U, reduced=True, quantised=True), 2.0**-5, "quantised"),
    (Precision(2.0**-3), 0.5, "round_off"),
])  # fmt: skip
def test_the_largest_limit_counts(precision, value, name):
    assert Rulebook().limit(tanh(0.0, 0.0, precision=precision)) == (value, name)


@pytest.mark.parametrize("error, came, found", [
    (0.25, 1 / 32, (0.25, "growth")), (0.26, 1 / 32, None), (0.0, 1 / 32, (0.25, "growth")),
    (0.0, 0.0, (0.0, "growth")),
])  # fmt: skip
def test_an_explanation_contains_the_error(error, came, found):
    assert Rulebook().explanation(tanh(error, came)) == found
    assert Rulebook(["growth"]).explanation(tanh(error, came)) is None


def test_the_smallest_bound_that_contains_the_error_explains_it():
    """exp of 4 has a condition number of 4, three times which is more than the growth of any operator."""
    four = (np.full(9, 4.0), np.full(9, 4.0))
    for error, found in ((0.25, (0.25, "growth")), (0.26, (0.375, "condition")), (0.38, None)):
        one = case("exp", [four], ones(64, *[error, -error] * 32), input_error=1 / 32)
        assert Rulebook().explanation(one) == found


def test_the_first_rule_that_accuses_is_named():
    """A copy that changed one of many elements: by its bits, by the lost element and by itself."""
    golden = np.arange(64.0)
    accused = case("clone", [(golden, golden)], (golden + 32.0 * (golden == 7), golden), input_error=0.0)
    names = ("copy", "lost_tile", "single_element")
    assert [rule.name for rule in RULES if rule.name in names] == [*names]
    rules = Rulebook()
    assert rules.accusation(accused).rule == "copy"
    assert Rulebook(["copy"]).accusation(accused).rule == "lost_tile"
    assert [rules.accusation(accused, name).rule for name in names] == [*names]
    assert rules.accusation(accused, "law") is None and rules.accusation(accused, "growth") is None
    assert Rulebook(names).accusation(accused) is None


def test_a_fact_holds_unless_its_rule_is_switched_off():
    empty, full = (case(op, [], (ones(9, 1.0))) for op in ("empty", "tanh"))
    assert Rulebook().holds("meaningless", empty) and not Rulebook().holds("meaningless", full)
    assert not Rulebook(["meaningless"]).holds("meaningless", empty) and not Rulebook().holds("unheard", empty)
    assert all(Rulebook().holds(name, full) for name in ("background", "behind_root", "container"))


def test_statistics_alone_make_a_suspect():
    one = tanh(0.1, 0.0)
    assert not Rulebook().holds("suspected", one)
    one.finding = without_values(one.finding)
    assert Rulebook().holds("suspected", one)


def test_each_rule_has_a_name_a_kind_and_a_reason():
    names = [rule.name for rule in RULES]
    assert len({*names}) == len(names) and all(rule.why for rule in RULES)
    assert {rule.kind for rule in RULES} == {"limit", "explanation", "accusation", "fact"}


@pytest.mark.parametrize("error", [nan, inf])
def test_growth_explains_no_infinite_error_by_a_finite_one(error):
    one = tanh(0.1, 1.0)
    one.finding = one.finding._replace(error=error)
    assert Rulebook().explanation(one) is None
