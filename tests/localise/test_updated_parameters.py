"""The backward operators of the parameter that an operator of the update writes."""

import numpy as np
import pytest

from npucmp.localise.updated_parameters import UpdatedParameters
from tests.localise.rules.craft import case

random = np.random.default_rng(9)
X, W, G, SCALED, STEPPED, DECAYED, V = (random.standard_normal((8, 8)) for _ in range(7))


def node(order, op, reads, wrote, phase="forward", call=""):
    """An operator that agrees on both sides, in that place of the run."""
    found = case(op, [(one, one) for one in reads], (wrote, wrote), phase=phase, name=f"{op}.{order}").node

    def placed(finding):
        pair = finding.pair
        target, golden = (one._replace(call=call, order=order) for one in (pair.target_op, pair.golden_op))
        moved = pair._replace(order=order, target_op=target, golden_op=golden)
        return finding._replace(measurement=finding.measurement._replace(pair=moved))

    found.inputs[:], found.outputs[:] = map(placed, found.inputs), map(placed, found.outputs)
    found.pair, found.operator = found.inputs[0].pair, found.inputs[0].pair.operator
    return found


FORWARD = node(0, "linear", [X, W], X + 1, call="linear.0")
BACKWARD = node(1, "linear", [G, W], G + 1, phase="backward", call="linear.0")


def operators(*update):
    """The backward operators of the last input of the first operator of an update."""
    return UpdatedParameters([FORWARD, BACKWARD, *update]).backward_operators(update[0].inputs[-1])


def test_an_update_shows_the_parameter_of_its_gradient():
    step = node(2, "sub", [W, SCALED], STEPPED)
    assert operators(step) == [BACKWARD]
    assert operators(node(2, "mul", [SCALED], STEPPED), node(3, "sub", [W, STEPPED], W + 1)) == [BACKWARD]
    assert operators(node(2, "sub", [W + 2, SCALED], STEPPED)) == []  # no forward operator read it
    assert operators(node(2, "sub", [W, SCALED[:2]], STEPPED)) == []  # the gradient has another number of elements


def test_an_operator_of_one_operand_may_come_before_the_update():
    """Such as a decay of the parameter."""
    decay = node(3, "mul", [W], DECAYED)
    assert operators(node(2, "mul", [SCALED], STEPPED), decay, node(4, "sub", [DECAYED, STEPPED], W + 1)) == [BACKWARD]
    adds = node(3, "add", [W, X], DECAYED)
    last = node(4, "sub", [DECAYED, STEPPED], W + 1)
    assert operators(node(2, "mul", [SCALED], STEPPED), adds, last) == []


def test_the_update_begins_behind_the_last_gradient():
    """An operator of the forward or the backward pass reads no gradient of an optimizer."""
    known = UpdatedParameters([FORWARD, BACKWARD])
    assert [known.backward_operators(one) for one in (*FORWARD.inputs, *BACKWARD.inputs)] == [[]] * 4
    assert UpdatedParameters([FORWARD]).backward_operators(FORWARD.inputs[0]) == []


def chained(length, first=2):
    """An update of so many operators, each of which reads what the one before wrote; the last reads the
    parameter."""
    steps = [SCALED + at for at in range(length)]
    made = [node(first + at, "mul", [read], wrote) for at, (read, wrote) in enumerate(zip(steps, steps[1:]))]
    return [*made, node(first + length - 1, "sub", [W, steps[-1]], W + 1)]


@pytest.mark.parametrize("length, found", [(1, True), (7, True), (8, True), (9, False)])
def test_the_parameter_is_few_operators_behind_its_gradient(length, found):
    assert operators(*chained(length)) == [BACKWARD] * found


def test_an_operator_that_writes_what_it_reads_counts_once():
    assert operators(node(2, "clone", [SCALED], SCALED), *chained(6, 3)) == [BACKWARD]


@pytest.mark.parametrize(
    "update",
    [
        [node(2, "sub", [X, SCALED], STEPPED)],  # the forward operator read it, but as no parameter
        [node(2, "sub", [np.ones((8, 8)), SCALED], STEPPED)],  # a constant identifies no tensor
        [node(2, "mul", [SCALED], np.ones((8, 8))), node(3, "sub", [np.ones((8, 8)), W], W + 1)],
        [node(2, "sub", [V, SCALED], STEPPED)],  # the backward pass alone read it
        [node(2, "sub", [DECAYED, SCALED], STEPPED), node(3, "linear", [G, DECAYED], X, call="linear.0")],
        [node(3, "mul", [SCALED], STEPPED), node(2, "sub", [W, STEPPED], W + 1)],  # it ran before
        [node(2, "sub", [STEPPED, SCALED], DECAYED), node(3, "fill", [W], np.ones((8, 8)))],
    ],
)
def test_no_parameter_is_behind_a_gradient(update):
    forward = [FORWARD, node(0, "linear", [X + 5, np.ones((8, 8))], X + 6, call="linear.0")]
    backward = [BACKWARD, node(1, "linear", [G, V], G + 2, phase="backward", call="linear.0")]
    found = UpdatedParameters([*forward, *backward, *update]).backward_operators(update[0].inputs[-1])
    assert found == []


def test_a_copy_of_a_parameter_is_the_parameter():
    copy = node(2, "clone", [W], W)
    assert operators(node(3, "sub", [W, SCALED], STEPPED), copy) == [BACKWARD]
    unread = node(2, "clone", [V], V)
    assert operators(node(3, "sub", [V, SCALED], STEPPED), unread) == []


def test_a_constant_that_was_made_of_a_parameter_is_not_the_parameter():
    fill = node(2, "fill", [W], np.ones((8, 8)))
    assert operators(node(3, "sub", [np.ones((8, 8)), SCALED], STEPPED), fill) == []


def test_calls_without_a_backward_pass_are_passed_over():
    """Two forward operators read the parameter; the one that was differentiated shows the gradient."""
    first = node(0, "linear", [X + 1, W], X + 2, call="linear.9")
    update = node(2, "sub", [W, SCALED], STEPPED)
    known, alone = (UpdatedParameters([first, *some, BACKWARD, update]) for some in ([FORWARD], []))
    assert known.backward_operators(update.inputs[1]) == [BACKWARD]
    assert alone.backward_operators(update.inputs[1]) == []
