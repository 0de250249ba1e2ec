"""What operators of a kind have in common, and what a run that computes activations again cannot tell."""

import pytest

from npucmp.model import Operator, ReplayedOutput, ReplayVerdict
from npucmp.recompute.kind_baseline import excuse_kinds, explain_kinds, mark_doubtful


def operators(*names):
    """By order; "a.0.forward" is of the call a.0."""
    found = {}
    for order, name in enumerate(names):
        kind, number, phase = name.split(".")
        found[order] = Operator(name, kind, f"{kind}.{phase}", phase, order, (), call=f"{kind}.{number}")
    return found


def row(order, ratio, rel_l2=1e-5, verdict=ReplayVerdict.GUILTY, unit=2.0**-24):
    figures = {"rms_ratio": ratio, "rel_l2": rel_l2, "rel_l2_u": rel_l2 / unit, "budget": "noise"}
    return ReplayedOutput(order, "output:0", verdict=verdict, **figures)


NAMES = operators(*(f"exp.{at}.forward" for at in range(5)))


def judged(rows):
    return [one.verdict.value for one in excuse_kinds(rows, explain_kinds(rows, NAMES))]


@pytest.mark.parametrize("rows, guilty", [
    ([row(at, 40.0) for at in range(5)], []),
    ([row(at, 40.0) for at in range(2)], [0, 1]),  # too few to be a kind
    ([row(at, 40.0 if at < 4 else 900.0, 1e-5 if at < 4 else 3e-4) for at in range(5)], [4]),  # one stands out
    ([row(at, 40.0 * 8**at) for at in range(5)], []),  # as far off as the others, relative to the values
    ([row(at, 1e5, 0.02) for at in range(5)], [0, 1, 2, 3, 4]),  # no setting makes such an error
    ([row(at, 40.0, verdict=ReplayVerdict.GUILTY if at else ReplayVerdict.CLEAN) for at in range(5)],
     [1, 2, 3, 4]),  # not all
    ([row(at, 5.0, 0.01, unit=2.0**-8) for at in range(5)], []),  # 2.6 u of bfloat16
    ([row(at, 50.0, 0.1, unit=2.0**-8) for at in range(5)], [0, 1, 2, 3, 4]),
])  # fmt: skip
def test_kinds(rows, guilty):
    assert [at for at, verdict in enumerate(judged(rows)) if verdict == "GUILTY"] == guilty


def biased(order, share, rel_l2=1e-4):
    """A row whose mean error toward zero is that share of its relative error."""
    return row(order, 1e3, rel_l2)._replace(bias=share * rel_l2 * 2.0**24)


@pytest.mark.parametrize("shares, guilty", [
    ([-1.0] * 5, True),  # a factor
    ([4.0, 2.2, 1.3, 2.0, 1.7], True),  # an approximation
    ([0.05, -0.03, 0.0, 0.04, 0.01], False),  # roundings to nearest
    ([0.9, -0.6, 1.4, 0.2, -0.8], False),  # the same of sums, whose errors do not grow with the values
])  # fmt: skip
def test_an_error_in_one_direction_is_no_setting_of_the_device(shares, guilty):
    rows = [biased(at, share) for at, share in enumerate(shares)]
    (kind,) = explain_kinds(rows, NAMES)
    assert {one.verdict.value for one in excuse_kinds(rows, [kind])} == {"GUILTY" if guilty else "AMPLIFIER"}
    assert ("explained by another formula" in kind.words) is guilty
    assert kind.alike == (frozenset(range(5)) if guilty else frozenset())


def test_products_of_a_small_kind_are_held_against_those_of_all_kinds():
    one_unit = operators(
        "linear.0.forward", "linear.1.forward", "linear.2.forward", "matmul.0.forward", "exp.0.forward"
    )
    rows = [row(at, 40.0) for at in range(5)]
    found = [one.verdict.value for one in excuse_kinds(rows, explain_kinds(rows, one_unit))]
    assert found == ["AMPLIFIER"] * 4 + ["GUILTY"]
    rows = [
        row(at, 40.0 if at > 2 else 0.5, verdict=ReplayVerdict.GUILTY if at > 2 else ReplayVerdict.CLEAN)
        for at in range(5)
    ]
    assert [one.verdict.value for one in excuse_kinds(rows, explain_kinds(rows, one_unit))] == ["CLEAN"] * 3 + [
        "GUILTY"
    ] * 2


def test_gradients_after_a_guilty_forward_that_may_have_run_again():
    again = operators("a.0.forward", "b.0.forward", "b.0.backward", "b.1.forward", "b.1.backward", "a.0.backward")
    rows = [row(0, 9.0), row(4, 9.0), row(5, 9.0)]
    assert [one.verdict.value for one in mark_doubtful(rows, again)] == ["GUILTY", "UNKNOWN", "GUILTY"]
    kept = operators("a.0.forward", "b.0.forward", "b.0.backward", "a.0.backward")
    rows = [row(0, 9.0), row(2, 9.0), row(3, 9.0)]
    assert mark_doubtful(rows, kept) == rows
    clean = [row(0, 0.5, verdict=ReplayVerdict.CLEAN), row(4, 9.0)]
    assert mark_doubtful(clean, again) == clean
