"""The facts about a tensor that rules read: sizes, terms of sums, choices, factors and errors."""

from dataclasses import replace
from math import inf, isnan, nan, sqrt

import numpy as np
import pytest

from npucmp.localise import rule_context
from npucmp.localise.rule_context import RuleContext
from npucmp.localise.rules import Rulebook
from npucmp.model import Statistics
from tests.localise.rules.craft import case

X = np.random.default_rng(2).standard_normal((8, 8))
F32 = 2.0**-24


def same(values, *types):
    return (np.asarray(values, float), np.asarray(values, float), *types)


def measured(one, **fields):
    """The case with other fields of its measurement."""
    return replace(one, finding=one.finding._replace(measurement=one.finding.measurement._replace(**fields)))


def recorded(one, **statistics):
    """The case of a golden tensor of which statistics alone are known."""
    pair = one.pair._replace(golden=one.pair.golden._replace(statistics=Statistics(**statistics)))
    return measured(one, pair=pair, moments=None)


def test_nothing_explains_or_accuses_a_tensor_by_itself():
    """Whatever its error; an error that came in explains eight times as much."""
    rules = Rulebook()
    for error in (1e-7, 1e-3, 0.5):
        alone = RuleContext(case("linear", [], ((1 + error) * X, X)).finding)
        assert rules.explanation(alone) is None and rules.accusation(alone) is None
        came = replace(alone, input_error=error / 4)
        assert rules.explanation(came).rule == "growth"
        assert rules.explanation(replace(alone, input_error=error / 9)) is None


def test_a_tensor_by_itself_has_no_terms_choices_or_inputs():
    alone = case("linear", [same(X)], same(X), node=False)
    assert (alone.amplification, alone.terms, alone.rounding_of_terms, alone.input_gain) == (1.0, (0.0, 0.0), 0.0, 0.0)
    assert not (alone.is_non_smooth or alone.is_composed or alone.chose_alike or alone.cancels)
    assert RuleContext(alone.finding).error == 0.0 and RuleContext(alone.finding).downcast_share == 1.0


def test_the_absolute_error_is_the_root_mean_square_of_the_differences():
    one = case("tanh", [], ([2.0, 3.0], [1.0, 0.0]))
    assert one.absolute == sqrt(5) and one.error == pytest.approx(sqrt(10))
    assert case("tanh", [], ([nan, 3.0], [1.0, 3.0])).absolute == inf
    assert case("tanh", [], same([nan, nan])).absolute == inf
    golden = recorded(one, norm=sqrt(8))
    golden.finding = golden.finding._replace(error=0.25)
    assert golden.absolute == pytest.approx(0.5)


TERMS = np.array([1.0, -1.0] * 8)  # 16 terms of size 1, whose sum is 4 if their signs are random


def summed(target, golden, own="float32", round_off=F32, **more):
    return case("sum", [same(TERMS)], ([target], [golden], own), round_off=round_off, **more)


def walk(total, u):
    """The rounding of the sum of one side by the formula of Higham: 0.42 u √(K/3 r² + K/2 Q)."""
    return 4 * 0.42 * u * sqrt(16 / 3 * total**2 + 16 / 2 * 16)


@pytest.mark.parametrize(
    "own, accumulated", [("float32", F32), ("bfloat16", F32), ("float64", 2.0**-53), ("int32", F32)]
)
@pytest.mark.parametrize("round_off, error", [(F32, 0.0), (2.0**-8, 0.0), (F32, 1e-3)])
def test_a_sum_has_the_rounding_of_its_terms(own, accumulated, round_off, error):
    """Each term has an error of 8 round-offs (whole numbers have none) or of what came in; both sides add up."""
    one = summed(0.75, 0.5, own, round_off, input_error=error)
    bound = 8 * max(error, 0.0 if own == "int32" else round_off) * 4 + walk(0.5, accumulated)
    assert one.rounding_of_terms == pytest.approx(bound / 0.5, rel=1e-2) and one.error == 0.5
    assert summed(3.999, 4.0, own, round_off).rounding_of_terms == 0.0


@pytest.mark.parametrize("golden, is_sum", [(0.5, True), (3.999, True), (4.0, False), (5.0, False)])
def test_a_sum_as_large_as_terms_of_random_signs_give_is_well_conditioned(golden, is_sum):
    assert (summed(golden + 1e-7, golden).rounding_of_terms > 0) == is_sum


def test_a_sum_that_is_zero_may_have_any_relative_error():
    assert summed(1e-6, 0.0).rounding_of_terms == inf and summed(1e-6, 0.0).error == inf
    assert summed(1e-3, 0.0).rounding_of_terms == 0.0
    assert summed(0.0, 0.0).rounding_of_terms == inf and summed(nan, 0.5).rounding_of_terms == 0.0
    assert case("tanh", [same(TERMS)], ([1e-6], [0.0])).rounding_of_terms == 0.0


@pytest.mark.parametrize("golden, off, cancels", [
    (0.5, 1e-6, True), (0.5, 1e-2, False), (0.5, 0.0, False), (1.99, 1e-6, True), (2.0, 1e-6, False),
    (3.0, 1e-6, False),
])  # fmt: skip
def test_a_sum_of_less_than_half_of_its_terms_cancels(golden, off, cancels):
    assert summed(golden + off, golden).cancels == cancels
    assert summed(1e-6, 0.0).cancels and not summed(1e-3, 0.0).cancels


def test_terms_are_counted_by_shapes():
    product = case("linear", [same(np.ones((2, 9))), same(np.ones((9, 3)))], same(np.ones((2, 3))))
    assert product.terms_summed == 9 and case("tanh", [same(X)], same(X)).terms_summed == 1
    for field in ("golden", "golden_op"):
        assert measured(product, pair=product.pair._replace(**{field: None})).terms_summed == 1


def test_a_round_off_is_an_eighth_of_the_limit_or_that_of_the_types():
    one = case("tanh", [same(X)], same(X, "float32", "bfloat16"), round_off=2.0**-11)
    assert (one.round_off, one.own_round_off) == (2.0**-11, 2.0**-8)
    assert case("argmax", [], same([1], "int64"), round_off=0.0).own_round_off == 0


def test_a_factor_is_that_of_the_whole_tensor_or_of_what_was_read():
    read = [(1.01 * X, X), (0.97 * X, X)]
    one = case("add", read, (1.25 * X, X), [("output:0", (0.96 * X, X))], phase="backward")
    assert one.gain == pytest.approx(0.25) and one.input_gain == pytest.approx(0.04)
    assert case("add", read, same(X)).input_gain == pytest.approx(0.03) and case("add", read, same(X)).gain == 0.0
    assert measured(one, moments=None).gain == 0.0


@pytest.mark.parametrize("values, has_many", [
    ([1.0] * 16, True), ([1.0] * 15, False), ([2.0] + [1.0] * 12 + [0.0] * 9, True),
    ([2.0] + [1.0] * 11 + [0.0] * 9, False),
    ([9.0] + [1.0] * 99, False),
])  # fmt: skip
def test_many_elements_make_up_a_norm(values, has_many):
    """Sixteen elements, whose squares are those of four of the largest."""
    one = case("tanh", [], same(values))
    assert one.has_many == has_many and not measured(one, moments=None).has_many


def test_values_are_measured_if_an_error_by_rel_l2_is_known():
    one = case("tanh", [], (X + 1, X))
    assert one.is_measured
    for fields in ({"error": None}, {"metric": "noise"}):
        assert not replace(one, finding=one.finding._replace(**fields)).is_measured
    assert not measured(one, moments=None).is_measured and not case("tanh", [], same(X)).is_measured


@pytest.mark.parametrize("dtype, is_choice", [
    ("bool", True), ("int64", True), ("uint8", True), ("float32", False), ("complex64", False),
    ("unheard", False),
])  # fmt: skip
def test_masks_and_indices_are_choices(dtype, is_choice):
    one = case("topk", [], same([1.0], "float32", dtype))
    assert one.is_choice == is_choice
    assert not measured(one, pair=one.pair._replace(golden=None)).is_choice


def test_the_share_that_changed_counts_elements_that_differ():
    one = case("topk", [], ([1, 2, 4, 3], [1, 2, 3, 4], "int64"))
    assert one.share_changed == 0.5 and measured(one, moments=None).share_changed == 1.0
    assert case("topk", [], same([], "int64")).share_changed == 1.0


KINKS, SMOOTH = "relu", "tanh"
MASK = same(np.arange(16), "int64")
OTHER = (np.arange(16)[::-1] + 0.0, np.arange(16) + 0.0, "int64")


@pytest.mark.parametrize("op, phase, path, saved, is_non_smooth", [
    (KINKS, "backward", "", [], True), (KINKS, "forward", "", [], False), (SMOOTH, "backward", "", [], False),
    ("Block", "backward", "Module.block", [], True), ("Block", "backward", "", [], False),
    ("Linear", "backward", "Module.fc", [], False), ("Block", "forward", "Module.block", [], False),
    (KINKS, "backward", "", [MASK], False), (KINKS, "backward", "", [OTHER], True),
    (KINKS, "backward", "", [MASK, OTHER], True), ("Block", "backward", "Module.block", [MASK], True),
])  # fmt: skip
def test_gradients_of_choices_and_of_modules_are_not_smooth(op, phase, path, saved, is_non_smooth):
    kept = [("output:1", one) for one in saved]
    assert case(op, [same(X)], same(X), kept, phase=phase, path=path).is_non_smooth == is_non_smooth


@pytest.mark.parametrize("op, path, is_composed", [
    ("Block", "Module.block", True), ("Block", "", False), ("Linear", "Module.fc", False),
    (KINKS, "Module.act", True),
])  # fmt: skip
def test_a_module_is_composed_unless_its_class_is_smooth(op, path, is_composed):
    assert case(op, [same(X)], same(X), path=path).is_composed == is_composed


@pytest.mark.parametrize("read, saved, alike", [
    ([], [], False), ([MASK], [], True), ([], [MASK], True), ([OTHER], [MASK], False),
    ([MASK], [OTHER], False),
    ([same(np.arange(15), "int64")], [], False), ([MASK, (OTHER[0][:15], OTHER[1][:15], "int64")], [], True),
    ([same(np.arange(16.0))], [], False), ([MASK, (X, -X)], [], True),
])  # fmt: skip
def test_a_choice_that_an_operator_reads_is_equal_on_both_sides(read, saved, alike):
    """A choice of fewer than 16 elements shows nothing."""
    one = case("gather", read, same(X), [("output:1", kept) for kept in saved])
    assert one.chose_alike == alike


def test_a_choice_without_values_shows_nothing():
    one = case("gather", [MASK, MASK], same(X))
    for count in range(2):
        finding = one.node.inputs[count]
        one.node.inputs[count] = finding._replace(measurement=finding.measurement._replace(moments=None))
        assert one.chose_alike == (not count)


def test_a_mark_of_divergence_says_the_error():
    found = rule_context.mark_diverged(case("tanh", [], (1.25 * X, X)).finding)
    assert found.verdict.value == "diverged" and found.because.startswith("rel_l2 2.50e-01,")


@pytest.mark.parametrize("error, bound, of, size, proven", [
    (0.5, None, 0.5, 0.5, 0.5), (0.5, 0.25, 0.5, 0.5, 0.5), (None, None, None, 0.0, 0.0),
    (None, 0.25, None, 0.0, 0.0),
    (nan, None, inf, inf, inf), (nan, 0.25, inf, inf, 0.25), (nan, 0.0, inf, inf, 0.0),
    (inf, 0.25, inf, inf, inf),
])  # fmt: skip
def test_errors_are_known_proven_or_infinite(error, bound, of, size, proven):
    """A difference of unknown size is infinite, unless statistics prove a bound."""
    finding = measured(case("tanh", [], same(X)), bound=bound).finding._replace(error=error)
    assert rule_context.error_of(finding) == of and rule_context.error_size(finding) == size
    assert rule_context.proven_size(finding) == RuleContext(finding).error == proven


def test_a_factor_counts_in_deviations_of_the_error():
    """Errors of either sign average out with the root of the number of elements."""
    one = case("tanh", [], (np.array([1.5, 0.5, 1.5, 1.5]), np.ones(4))).finding
    assert rule_context.gain_of(one) == 0.25 and rule_context.deviations_of(one) == 0.25 * 2 / 0.5
    assert rule_context.deviations_of(case("tanh", [], (0.5 * X, X)).finding) == pytest.approx(-8)
    for finding in (
        one._replace(error=inf),
        one._replace(error=0.0),
        one._replace(measurement=one.measurement._replace(moments=None)),
    ):
        assert rule_context.deviations_of(finding) == 0.0


def test_shares_of_elements_reach_each_decade_of_relative_error():
    golden = np.ones(8)
    target = np.array([1.0, 1.0, 1.0, 1.002, 1.02, 1.02, 3.0, 30.0])
    shares = rule_context.shares_beyond(case("tanh", [], (target, golden)).finding)
    off = abs(target - golden)
    expected = [1.0, *(np.mean(off >= 10.0 ** (decade - 20)) for decade in range(1, 24))]
    assert shares == expected and shares[rule_context.WHOLE_BIN] == 0.25
    nothing = case("tanh", [], same([nan])).finding
    assert rule_context.shares_beyond(nothing) == []
    assert rule_context.shares_beyond(measured(case("tanh", [], same(X)), moments=None).finding) == []
    assert not any(map(isnan, shares))


def test_a_rule_without_a_bound_bounds_nothing_and_marks_the_finding():
    rule = rule_context.ErrorRule("fact", "own", "why", lambda case: True)
    one = case("tanh", [], (1.25 * X, X))
    assert rule.bound(one) == 0.0 and rule.judged(one) == rule_context.mark_diverged(one.finding)
