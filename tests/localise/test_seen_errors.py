"""The errors that stand for one that nothing recorded."""

import math

import numpy as np
import pytest

from npucmp.judge.tolerance import FACTOR
from npucmp.localise.seen_errors import SeenErrors, agrees, is_still
from npucmp.model import Verdict
from tests.localise.rules.craft import case, drawn, without_values

normal, noisy = drawn(__name__)
X, Y, BIAS = normal(8, 16), normal(16, 8), normal(128)


def written(values, error, phase="backward"):
    return case("linear", [(noisy(X, 1e-7), X)], (noisy(values, error), values), phase=phase)


@pytest.mark.parametrize(
    "addend, phase, is_read, found",
    [
        (Y, "backward", False, True),  # as many elements, however they are arranged
        (Y, "backward", True, False),  # the operator that reads it passes its error on
        (Y, "forward", False, False),
        (BIAS, "backward", False, False),  # the gradient of a bias is no term of another
        (normal(4, 4), "backward", False, False),
    ],
)
def test_a_gradient_that_nothing_recorded_is_a_sum_of_gradients_that_nothing_reads(addend, phase, is_read, found):
    seen = SeenErrors(lambda finding: is_read)
    for values, error, way in [(addend, 1e-3, phase), *[(X, 1e-7, "backward")] * 40]:
        one = written(values, error, way)
        seen.learn(one.node, one.node.inputs)
    asked = case("tanh", [], (X, X), slot="input:0", phase="backward").finding
    assert (seen.usual(asked) > 1e-4) is found
    assert seen.usual(case("tanh", [], (X, X), phase="backward").finding) < 1e-6  # of an output


ZERO = np.zeros(1)


@pytest.mark.parametrize(
    "left, value, golden, found",
    [
        (ZERO, 5e-6, ZERO, math.inf),  # not larger than a rest that the golden has as zero, within its factor
        (ZERO, 5e-3, ZERO, 0.0),
        (ZERO, 0.0, ZERO, 0.0),  # it has no error to explain
        (ZERO, 5e-6, np.ones(1), 0.0),
        (np.full(1, 1e-3), 5e-6, ZERO, 1e-3),  # this rest has a relative error
    ],
)
def test_a_rest_of_a_sum_that_is_zero_in_the_golden_has_no_relative_error(left, value, golden, found):
    seen = SeenErrors()
    seen.learn_left(case("sub", [], (left + 1e-6, left)).finding)
    asked = case("mul", [], (np.full(1, value), golden), slot="input:0").finding
    assert seen.usual(asked) == pytest.approx(found, rel=1e-6)


def off_by(error, phase="forward", golden=X):
    """An operator whose output has exactly that relative error."""
    return case("tanh", [], (golden * (1 + error), golden), phase=phase)


def add(seen, *errors, queue=False):
    for error in errors:
        (seen.pass_by if queue else seen.learn)(off_by(error).node, [])


ASKED = case("tanh", [], (X, X), slot="input:0").finding


@pytest.mark.parametrize("queue", [False, True])
def test_an_unknown_error_is_the_ninth_decile_of_those_seen(queue):
    seen = SeenErrors()
    assert seen.usual(ASKED) == 0.0
    add(seen, *(place * 1e-5 for place in range(21, 0, -1)), queue=queue)
    assert seen.usual(ASKED) == pytest.approx(19e-5, rel=1e-6)


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("behind, found", [(0, 1e-3), (7, 1e-3), (8, 1e-6)])
def test_an_unknown_error_may_be_that_of_the_eight_latest_operators(behind, found, queue):
    seen = SeenErrors()
    add(seen, *[1e-6] * 40, 1e-3, *[1e-6] * behind, queue=queue)
    assert seen.usual(ASKED) == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize("op, found", [("mul", 1e-3), ("nll_loss", 1e-6)])
def test_an_unknown_scalar_has_the_largest_error_unless_it_is_a_loss(op, found):
    seen = SeenErrors()
    add(seen, 1e-3, *[1e-6] * 40)
    asked = case(op, [], (np.ones(1), np.ones(1)), slot="input:0").finding
    assert seen.usual(asked) == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize(
    "asked, behind, found",
    [
        (normal(128), 0, True),
        (normal(128), 7, True),
        (normal(128), 8, False),
        (normal(127), 0, False),
        (ZERO, 0, False),
        (ZERO, 1, False),
    ],
)
def test_the_eight_latest_operators_may_have_written_as_many_elements(asked, behind, found, queue):
    seen = SeenErrors()
    for golden in (X, *[np.ones(1)] * behind):
        (seen.pass_by if queue else seen.learn)(off_by(0.0, golden=golden).node, [])
    assert seen.has_recent(case("tanh", [], (asked, asked), slot="input:0").finding) is found


@pytest.mark.parametrize("queue", [False, True])
def test_the_latest_tensor_that_agrees_is_an_output_before_an_input(queue):
    seen = SeenErrors()
    assert seen.last_agreeing is None
    for own in (case("tanh", [(X, X)], (Y, Y), name="a"), case("tanh", [(X, X)], (2 * Y, Y), name="b")):
        (seen.pass_by if queue else seen.learn)(own.node, [])
    assert (seen.last_agreeing.pair.operator.name, seen.last_agreeing.pair.slot) == ("b", "input:0")
    (seen.pass_by if queue else seen.learn)(case("tanh", [(X, X)], (Y, Y), name="c").node, [])
    assert (seen.last_agreeing.pair.operator.name, seen.last_agreeing.pair.slot) == ("c", "output:0")
    (seen.pass_by if queue else seen.learn)(case("tanh", [(2 * X, X)], (2 * Y, Y), name="d").node, [])
    assert seen.last_agreeing.pair.operator.name == "c"


@pytest.mark.parametrize(
    "verdict, offset, alike, still",
    [
        (Verdict.MATCH, 0.0, True, True),
        (Verdict.MATCH, 1e-9, True, False),
        (Verdict.DIVERGED, 0.0, False, False),
        (Verdict.UNKNOWN, 0.0, False, True),
        (Verdict.MISSING, 0.0, False, False),
    ],
)
def test_equal_bits_are_more_than_a_match(verdict, offset, alike, still):
    finding = off_by(offset).finding._replace(verdict=verdict)
    assert (agrees(finding), is_still(finding)) == (alike, still)


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize(
    "phase, asked, found",
    [
        ("backward", np.full(3, 1.75), True),  # below the norm of the latest gradient, which is 2
        ("backward", np.full(3, 2.0), False),
        ("backward", np.full(3, 2.25), False),
        ("backward", np.full(4, 1.75), False),
        ("forward", np.full(3, 2.25), True),
        ("forward", np.full(4, 1.75), False),
    ],
)
def test_few_elements_may_be_the_rest_of_a_sum_unless_they_exceed_the_latest_gradients(phase, asked, found, queue):
    seen = SeenErrors()
    for way, golden in (("backward", np.full(16, 0.5)), ("forward", np.full(16, 5.0))):
        (seen.pass_by if queue else seen.learn)(off_by(0.0, way, golden).node, [])
    assert seen.may_cancel(case("tanh", [], (asked, asked), slot="input:0", phase=phase).finding) is found


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize(
    "op, phase, slot, asked, found",
    [
        (
            "tanh",
            "backward",
            "input:0",
            np.full(16, FACTOR * 2.0),
            1 / FACTOR,
        ),  # rounding of terms of 4 in units of 0.5
        ("tanh", "backward", "input:0", np.full(16, FACTOR * 2.5), 0.0),
        ("tanh", "backward", "input:0", np.zeros(16), 0.0),
        ("tanh", "backward", "input:0", np.full((4, 4), 4.0), 0.0),
        ("tanh", "backward", "output:0", np.full(16, 4.0), 0.0),
        ("tanh", "forward", "input:0", np.full(16, 4.0), 0.0),
        ("all_reduce", "forward", "input:0", np.full(16, 4.0), 0.5),
    ],
)
def test_the_gradient_of_a_bias_may_be_smaller_than_the_rounding_of_its_terms(op, phase, slot, asked, found, queue):
    seen = SeenErrors()
    (seen.pass_by if queue else seen.learn)(off_by(0.0, golden=np.full((4, 4), 4.0)).node, [])
    finding = case(op, [], (asked, asked), slot=slot, phase=phase).finding
    for working, limit in ((0.5, 0.0), (0.0, 0.5 * FACTOR)):
        one = finding._replace(working=working, limit=limit)
        assert seen.below_rounding(one) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("queue", [False, True])
def test_operands_are_the_two_latest_outputs_of_a_shape(queue):
    seen = SeenErrors()
    assert (seen.of_shape((8, 16)), seen.of_operands((8, 16))) == (None, 0.0)
    for row, error in enumerate([1e-2, 1e-3, 1e-4]):
        node = off_by(error).node
        node.outputs[0] = node.outputs[0]._replace(row=row)
        seen.pass_by(node, []) if queue else seen.learn_shapes(node)
    assert seen.of_shape((8, 16)) == pytest.approx(1e-4, rel=1e-6)
    assert seen.of_operands((8, 16)) == pytest.approx(1e-3, rel=1e-6)
    assert seen.of_shape((16, 8)) is None


@pytest.mark.parametrize(
    "verdict, alike, still",
    [(Verdict.MATCH, True, True), (Verdict.UNKNOWN, False, True), (Verdict.MISSING, False, False)],
)
def test_without_an_error_the_verdict_decides_whether_bits_are_equal(verdict, alike, still):
    finding = without_values(off_by(0.0).finding, verdict=verdict, error=None)
    assert (agrees(finding), is_still(finding)) == (alike, still)
    bound = finding._replace(measurement=finding.measurement._replace(bound=0.0))
    assert agrees(bound) is still


@pytest.mark.parametrize("times, found", [(0.5, math.inf), (1.0, math.inf), (1.5, 0.0)])
def test_a_zero_of_the_golden_may_be_a_factor_larger_than_rests_seen(times, found):
    seen = SeenErrors()
    seen.learn_left(case("sub", [], (np.full(1, 0.25), ZERO)).finding)
    asked = case("mul", [], (np.full(1, times * FACTOR * 0.25), ZERO), slot="input:0").finding
    assert seen.usual(asked) == found


def test_the_latest_input_that_agrees_may_be_the_first_of_two():
    seen = SeenErrors()
    seen.learn(case("add", [(X, X), (2 * X, X)], (2 * X, X)).node, [])
    assert seen.last_agreeing.pair.slot == "input:0"
    seen.learn(case("add", [(X, X), (X, X)], (2 * X, X)).node, [])
    assert seen.last_agreeing.pair.slot == "input:1"


def test_equal_values_may_have_other_bits():
    """Signs of zeros, and types, differ without an error."""
    finding = off_by(0.0).finding
    moments = finding.measurement.moments._replace(equal=finding.measurement.moments.elements - 1)
    assert not is_still(finding._replace(measurement=finding.measurement._replace(moments=moments)))
    assert is_still(without_values(finding)) and not is_still(without_values(finding, error=1e-9))


def test_no_rounding_of_terms_is_known_before_the_first_output():
    asked = case("tanh", [], (X[0], X[0]), slot="input:0", phase="backward").finding._replace(working=1.0)
    assert SeenErrors().below_rounding(asked) == 0.0


@pytest.mark.parametrize("error, is_rest, found", [(1e-2, False, 1e-2), (1e-2, True, 1e-6), (math.nan, False, 1e-6)])
def test_rests_of_sums_and_unknown_sizes_are_no_errors_seen(error, is_rest, found):
    seen = SeenErrors()
    add(seen, 1e-6)
    one = off_by(1e-2).finding._replace(error=error, row=5)
    if is_rest:
        seen.mark_residue(one)
    seen.learn(off_by(0.0).node, [one])
    asked = case("mul", [], (np.ones(1), np.ones(1)), slot="input:0").finding
    assert seen.usual(asked) == pytest.approx(found, rel=1e-4)
