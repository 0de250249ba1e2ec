"""The largest error that an operator may have read, for one of its outputs, and that of an input before it is read."""

import math

import numpy as np
import pytest

from npucmp.localise.intervals import WORDS, Interval
from npucmp.localise.parameter_drift import Updates
from npucmp.localise.sources import TensorSource
from npucmp.model import Verdict
from tests.localise.interval_craft import LIMIT, Search, is_interval, known, operand, unknown
from tests.localise.rules.craft import case
from tests.localise.stat_craft import HALF, Op, row

INF = math.inf
ROUNDED = Interval(0.0, 2 * HALF, "saved")  # both sides round
A, B, OUT = known("input:0", 0.1), known("input:1", 0.2, 5.0), known("output:0", 0.5, 9.0)
LOST = unknown("input:1", 5.0)


def arriving(search, unproven=0.0):
    """The error that arrives at the first output of the last operator."""
    search.intervals.unproven = unproven
    node = search.node
    return search.intervals.incoming_error(node, node.outputs[0], search.reads())


USUAL = Interval(0.0, 0.3, "unknown producer")
DRIFT = Interval(0.0, 0.05, "parameter")
FIGURES = row("output:0")  # its bound is known
LARGE, MISSING = operand("output:0", 4.0, size=9.0), unknown("input:1", 5.0, verdict=Verdict.MISSING)
LINEAR = (A, known("input:1", 0.02, 5.0), OUT)


@pytest.mark.parametrize(
    ("one", "unproven", "found"),
    [
        # all inputs are known
        (Op("mul", (A, B, OUT)), 0.0, Interval(0.2, 0.2)),
        (Op("mul", (B._replace(slot="input:0"), A, OUT)), 0.0, Interval(0.2, 0.2)),
        (Op("mul", (known("input:0", 0.0), OUT)), 0.0, Interval(0.0, 0.0)),
        (Op("add", (operand("input:0", 1.0, error=0.2), LARGE)), 0.0, Interval(0.05, 0.05)),
        # a gradient whose forward was not recorded
        (Op("mul", (known("input:0", 0.0), OUT), "backward", "one"), 0.0, USUAL),
        (Op("mul", (known("input:0", 0.4), OUT), "backward", "one"), 0.0, Interval(0.4, 0.4)),
        (Op("add", (known("input:0", 0.0), OUT), "backward", "one"), 0.0, Interval(0.0, 0.0)),
        # an input is unknown
        (Op("mul", (A, LOST, OUT)), 0.0, USUAL),
        (Op("mul", (A, LOST, OUT)), 0.4, USUAL),
        (Op("mul", (A, LOST, FIGURES)), 0.4, Interval(0.0, 0.4, "parameter")),
        (Op("mul", (A, LOST, FIGURES)), 0.2, USUAL),
        (Op("linear", (LOST._replace(slot="input:0"), OUT)), 0.4, Interval(0.0, 0.4, "parameter")),
        (Op("linear", (LOST._replace(slot="input:0"), B, OUT)), 0.4, USUAL),
        # parameters of later steps that were not recorded
        (Op("linear", LINEAR), 0.4, Interval(0.1, 0.1)),
        (Op("linear", (A, OUT)), 0.4, Interval(0.0, 0.4, "parameter")),
        (Op("linear", (A, OUT)), 0.05, Interval(0.1, 0.1)),
        (Op("linear", (A, OUT), "backward"), 0.4, Interval(0.1, 0.1)),
        (Op("linear", (A, MISSING, OUT)), 0.4, Interval(0.0, 0.4, "parameter")),
        (Op("mul", (A, OUT)), 0.4, Interval(0.1, 0.1)),
        (Op("mul", (OUT,)), 0.4, Interval(0.0, 0.4, "parameter")),  # the first operator
    ],
)  # fmt: skip
def test_the_largest_error_that_may_arrive(one, unproven, found):
    search = Search(one)
    search.see(0.3)
    assert is_interval(arriving(search, unproven), found)


def test_an_operator_without_inputs_behind_another_reads_no_parameters():
    search = Search(Op("tanh", (known("output:0", 0.0, 8.0),)), Op("mul", (OUT,)))
    assert arriving(search, 0.4) == Interval(0.0, 0.0)


def test_rounding_of_saved_tensors_arrives_at_a_gradient():
    search = Search(Op("mul", (known("input:0", 0.0), OUT), "backward", "one"))
    assert arriving(search) == ROUNDED
    search = Search(Op("mul", (known("input:0", 0.0), OUT), "backward", "one"), by_round_off=False)
    assert arriving(search) == Interval(0.0, 0.0)
    search = Search(Op("mul", (known("input:0", 0.0), OUT), "backward", "one"), rules=["background"])
    search.see(0.3)
    assert arriving(search) == ROUNDED


@pytest.mark.parametrize(
    ("saved", "is_known", "uncompared"),
    [
        ((known("input:0", 0.1, 6.0), known("output:0", 0.1, 7.0)), True, []),
        ((known("input:0", 0.1, 6.0), unknown("output:0", 7.0)), False, ["output:0"]),
        ((unknown("input:0", 6.0), unknown("output:0", 7.0)), False, ["input:0", "output:0"]),
        ((known("input:0", 0.1, 6.0), unknown("output:0", 7.0, verdict=Verdict.MISSING)), True, []),
        ((known("input:0", 0.1, 6.0), unknown("input:1", 7.0)), True, []),  # a parameter
    ],
)
def test_tensors_saved_by_a_forward_may_not_have_been_compared(saved, is_known, uncompared):
    search = Search(Op("linear", saved, call="one"), Op("linear", (A, OUT), "backward", "one"))
    assert search.intervals.is_saved_known(search.node) is is_known
    found = search.intervals.uncompared_saved_tensors(search.node)
    assert [one.pair.slot for one in found] == uncompared
    assert search.intervals.is_saved_known(search.nodes[0]) is True


def test_a_tensor_that_was_compared_where_it_was_written_has_that_finding():
    wrote, lost = known("output:0", 0.125, 6.0), unknown("input:0", 6.0)
    search = Search(Op("tanh", (wrote,)), Op("exp", (lost, B)))
    read, other = search.node.inputs
    finding = search.intervals.producer_finding
    assert finding(read) == search.nodes[0].outputs[0] and finding(other) == other
    again = Search(Op("tanh", (wrote,)), Op("exp", (known("input:0", 0.25, 6.0),)))
    assert again.intervals.producer_finding(again.node.inputs[0]) == again.node.inputs[0]
    saved = Search(Op("tanh", (wrote,)), Op("exp", (lost,), call="one"), Op("exp", (A, OUT), "backward", "one"))
    assert saved.intervals.is_saved_known(saved.node)


def gradient(op="mul", *more, reads=(0.0,), saved=(0.3, 0.1), shapes=((8, 8), (4, 4)), wrote=(8, 8)):
    """A gradient of an operand of a given shape; its forward has operands of given errors and shapes."""
    operands = [
        operand(f"input:{at}", 1.0, shape, 5.0 + at, error) for at, (error, shape) in enumerate(zip(saved, shapes))
    ]
    return Search(
        Op(op, (*operands, *more), call="one"),
        Op(op, (*[operand("input:0", 1.0, (2, 2), 3.0, one) for one in reads], operand("output:0", 1.0, wrote, 9.0)),
           "backward", "one"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("search", "high"),
    [
        (gradient(), 0.1),
        (gradient(wrote=(4, 4)), 0.3),
        (gradient(shapes=((8, 8), (8, 8))), 0.3),  # either may be its operand
        (gradient(wrote=(2, 2)), 0.3),
        (gradient("tanh"), 0.3),
        (gradient("mul", operand("output:0", 1.0, (8, 8), 8.0, 0.2), shapes=((4, 4), (4, 4))), 0.3),
        (gradient(reads=(0.2,)), 0.2),
        (gradient("linear", shapes=((8, 8), (4, 4))), 0.1),
    ],
)
def test_a_gradient_of_a_product_does_not_depend_on_its_own_operand(search, high):
    assert arriving(search) == Interval(high, high)


@pytest.mark.parametrize(
    ("op", "inputs", "high"),
    [("add", (), 0.4), ("mul", (), 0.4), ("tanh", (), 0.3), ("add", (LOST._replace(slot="input:0"),), 0.3)],
)
def test_operands_that_were_not_recorded_are_the_latest_outputs_of_their_shape(op, inputs, high):
    search = Search(Op("tanh", (known("output:0", 0.0, 8.0),)), Op(op, (*inputs, OUT), more={"reads_recorded": False}))
    search.see(0.3)
    x = np.linspace(1.0, 2.0, 4096).reshape(64, 64)
    search.seen.learn_shapes(case("sin", [], (x * 1.4, x)).node)
    assert is_interval(arriving(search), Interval(0.0, high, "unknown producer"))


@pytest.mark.parametrize(
    ("assumed", "left", "marked", "found"),
    [
        (0.2, 0.0, True, Interval(0.0, 0.2, "left of a sum")),
        (0.2, 0.25, True, Interval(0.0, 0.25, "left of a sum")),
        (0.2, 0.4, False, USUAL),
    ],
)
def test_an_operator_may_read_the_rest_of_a_sum_that_cancels(assumed, left, marked, found):
    one = Op("exp", (OUT,), more={"reads_recorded": False})
    search = Search(Op("sum", (known("output:0", assumed, 8.0),)), one)
    search.see(0.3)
    if left:
        search.seen.learn_left(case("sub", [], (np.ones(8) * (1 + left), np.ones(8))).finding)
    if marked:
        search.seen.mark_residue(search.nodes[0].outputs[0])
    assert search.intervals.is_cancellation_residue(search.node) is marked
    found = found if marked else found._replace(high=max(found.high, left))
    if marked:
        assert is_interval(arriving(search), found)


@pytest.mark.parametrize(
    ("errors", "marked", "is_residue"),
    [
        ((0.1, 0.2), (1,), True),
        ((0.1, 0.2), (0,), False),  # another input has the largest error
        ((0.1, 0.2), (0, 1), True),
        ((0.0, 0.0), (0, 1), False),
        ((0.1, None), (0,), True),
        ((0.1, 0.2), (), False),
    ],
)
def test_the_largest_error_may_be_that_of_the_rest_of_a_sum(errors, marked, is_residue):
    search = Search(Op("mul", tuple(known(f"input:{at}", one, 5.0 + at) for at, one in enumerate(errors))))
    for at in marked:
        search.seen.mark_residue(search.node.inputs[at])
    assert search.intervals.is_cancellation_residue(search.node) is is_residue


def test_an_operator_without_any_input_reads_no_rest_of_a_sum():
    search = Search(Op("mul", (OUT,)))
    assert search.intervals.is_cancellation_residue(search.node) is False
    before = Op("sum", (known("output:0", 0.1, 7.0), known("output:1", 0.1, 8.0)))
    search = Search(before, Op("exp", (OUT,)))
    for at, is_residue in ((0, False), (1, True)):
        search.seen.mark_residue(search.nodes[0].outputs[at])
        assert search.intervals.is_cancellation_residue(search.node) is is_residue


def test_a_rest_of_a_sum_is_known_where_it_was_written():
    search = Search(Op("sum", (known("output:0", 0.1, 6.0),)), Op("exp", (known("input:0", 0.1, 6.0), B)))
    read, other = search.node.inputs
    assert not search.intervals.is_residue(read)
    search.sources.learn(TensorSource(search.nodes[0].outputs[0], False, is_residue=True))
    assert search.intervals.is_residue(read) and not search.intervals.is_residue(other)
    search.seen.mark_residue(other)
    assert search.intervals.is_residue(other)


@pytest.mark.parametrize(
    ("tainted", "rules", "working", "high"),
    [
        (True, (), 0.0, LIMIT),
        (True, (), 2 * HALF, 2 * LIMIT),
        (True, ["behind_root"], 0.0, None),
        (False, (), 0.0, None),
    ],
)
def test_inputs_behind_a_root_may_reach_their_limit(tainted, rules, working, high):
    out = known("output:0", 0.5, 9.0, judged={"working": working})
    search = Search(Op("mul", (A, out)), rules=rules)
    search.intervals.any_tainted = tainted
    found = search.intervals.behind_a_root(search.node, search.node.outputs[0])
    assert found == (Interval() if high is None else Interval(0.0, high, "behind a root"))


def edge(search):
    finding = search.node.inputs[0]
    return search.intervals.edge(search.node, finding, search.sources.of(finding))


WROTE = Op("tanh", (known("output:0", 0.125, 6.0),))
READ = Op("exp", (known("input:0", 0.25, 6.0),))


@pytest.mark.parametrize(
    ("search", "found"),
    [
        (Search(WROTE, READ), Interval(0.0, 0.125, "written")),
        (Search(Op("tanh", (unknown("output:0", 6.0),)), READ), Interval(0.0, 0.0, "written")),
        (Search(Op("empty", WROTE.rows), READ), Interval(0.0, INF, "uninitialised")),
        (Search(Op("add_", (READ.rows[0], WROTE.rows[0]))), Interval(0.0, INF, "overwritten")),
        (Search(READ), USUAL),
        (Search(Op("linear", (known("input:1", 0.25, 6.0),))), Interval(0.0, 0.0, "parameter")),
        (Search(Op("linear", (known("input:1", 0.25, 6.0),)), updates=Updates(faulty=True)),
         Interval(0.0, INF, "behind a root")),
        (Search(Op("linear", (known("input:1", 0.25, 6.0),)), by_round_off=False, updates=Updates(faulty=True)),
         Interval(0.0, 0.0, "parameter")),
    ],
)  # fmt: skip
def test_an_input_that_differs_may_have_had_its_error_before_it_was_read(search, found):
    search.see(0.3)
    assert is_interval(edge(search), found)


def test_an_input_behind_a_root_may_have_any_error():
    tainted = Search(WROTE, READ)
    tainted.taint(tainted.nodes[0].outputs[0])
    assert edge(tainted) == Interval(0.0, INF, "behind a root")
    search = Search(READ)
    search.intervals.any_tainted = True
    assert edge(search) == Interval(0.0, INF, "behind a root")
    search = Search(WROTE, READ)
    search.intervals.any_tainted = True
    assert edge(search) == Interval(0.0, 0.125, "written")


def test_errors_of_parameters_are_those_of_the_updates_before():
    updates = Updates(Search(Op("linear", (A, known("input:1", 0.25, 6.0)))).walk.findings)
    search = Search(Op("linear", (known("input:1", 0.25, 6.0),)), updates=updates)
    assert edge(search) == Interval(0.0, updates.bound(search.node.inputs[0]), "parameter")
    assert search.intervals.unproven == updates.unproven


def test_each_interval_without_a_measurement_has_words():
    kinds = {"unknown producer": "90 %", "saved": "saved", "parameter": "parameter", "left of a sum": "cancel"}
    assert all(word in WORDS[kind] and "{high}" in WORDS[kind] for kind, word in kinds.items())
