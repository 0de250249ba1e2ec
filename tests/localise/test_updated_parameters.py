"""The backward operators of the parameter that an operator of the update writes."""

import numpy as np

from npucmp.localise.updated_parameters import UpdatedParameters
from tests.localise.rules.craft import case

random = np.random.default_rng(9)
X, W, G, SCALED, STEPPED, DECAYED = (random.standard_normal((8, 8)) for _ in range(6))


def node(order, op, reads, wrote, phase="forward", call=""):
    """An operator that agrees on both sides, in that place of the run."""
    found = case(op, [(one, one) for one in reads], (wrote, wrote), phase=phase, name=f"{op}.{order}").node

    def placed(finding):
        pair = finding.pair
        target, golden = (one._replace(call=call, order=order) for one in (pair.target_op, pair.golden_op))
        moved = pair._replace(order=order, target_op=target, golden_op=golden)
        return finding._replace(measurement=finding.measurement._replace(pair=moved))

    found.inputs[:], found.outputs[:] = map(placed, found.inputs), map(placed, found.outputs)
    found.pair = found.inputs[0].pair
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
