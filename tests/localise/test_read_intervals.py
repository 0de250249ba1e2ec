"""The error that each tensor may have that an operator reads: the ends of its interval, by hand."""

import math

import numpy as np
import pytest

from npucmp.localise.intervals import NO_DATA, Interval, OperatorReads, ReadTensor
from npucmp.model import Verdict
from tests.localise.interval_craft import Search, known, operand, unknown
from tests.localise.rules.craft import case
from tests.localise.stat_craft import HALF, Op, findings_of, of, row

INF = math.inf


def only(reads):
    (one,) = reads.inputs
    return one.interval


@pytest.mark.parametrize(
    ("one", "more", "interval"),
    [
        (known("input:0", 0.25), {}, Interval(0.25, 0.25)),
        (known("input:0", 0.0), {}, Interval(0.0, 0.0)),
        (known("input:0", math.nan), {}, Interval(INF, INF)),  # checksums that differ
        # the user's rules decide which sides agree
        (known("input:0", 0.25), {"by_round_off": False}, Interval(0.0, 0.0)),
        (known("input:0", 0.25, verdict=Verdict.DIVERGED), {"by_round_off": False}, Interval(0.25, 0.25)),
        (unknown("input:0"), {}, Interval(0.0, INF, "no data")),
        # figures: the proven error, and the likely one
        (row("input:0", 3, 5), {}, Interval(0.0, 5 * HALF, "statistics")),
        (row("input:0", 3, 5, known={"bound": 0.01}), {}, Interval(0.01, 5 * HALF, "statistics")),
        (row("input:0", 3, 5, known={"bound": 0.1}), {}, Interval(0.1, 0.1, "statistics")),
        (row("input:0", 3, 5, known={"bound": None}), {}, Interval(0.0, 5 * HALF, "statistics")),
        (row("input:0", dtype="int32"), {}, Interval(0.0, 0.0, "statistics")),
        (row("input:0", dtype="int32", known={"bound": None}), {}, NO_DATA),
        (row("input:0", dtype="int32", target=of(4.5)), {}, NO_DATA),
        (row("input:0", dtype="int32", golden=of(math.nan), target=of(float("nan"))), {},
         Interval(0.0, 0.0, "statistics")),
    ],
)  # fmt: skip
def test_a_record_gives_the_interval_of_an_input(one, more, interval):
    assert only(Search(Op("tanh", (one,)), **more).reads()) == pytest.approx(interval)


@pytest.mark.parametrize(
    ("wrote", "behind", "interval"),
    [
        (known("output:0", 0.25), (), Interval(0.25, 0.25, "written")),
        (known("output:0", None), (), NO_DATA),
        (known("output:0", 0.25), (0.5,), Interval(0.5, 0.5, "written")),  # made of inputs of a fused operator
        (known("output:0", 0.25), (None,), NO_DATA),
        (row("output:0", 3, 5), (), Interval(0.0, 5 * HALF, "written")),
        (None, (), NO_DATA),
    ],
)
def test_an_unrecorded_input_has_the_interval_of_its_producer(wrote, behind, interval):
    before = [Op("tanh", (wrote,))] if wrote else []
    search = Search(*before, Op("exp", (unknown("input:0"),)))
    for error in behind:
        search.intervals.behind[0] = error
    assert only(search.reads()) == pytest.approx(interval)


@pytest.mark.parametrize(
    ("one", "interval"),
    [
        (row("input:0", 3, 5), NO_DATA),  # figures bound no error that descends from a root
        (known("input:0", 0.25), Interval(0.25, 0.25)),
        (unknown("input:0"), Interval(0.125, 0.125, "written")),
    ],
)
def test_the_error_of_an_input_may_descend_from_a_root(one, interval):
    search = Search(Op("tanh", (known("output:0", 0.125),)), Op("exp", (one,)))
    search.taint(search.nodes[0].outputs[0])
    reads = search.reads()
    assert only(reads) == interval and reads.reached == (one.judged.get("error", None) is None)
    assert Search(Op("tanh", (known("output:0", 0.125),)), Op("exp", (one,))).reads().reached is False


def test_memory_that_no_operator_wrote_is_no_input():
    search = Search(Op("empty", (known("output:0", 0.5),)), Op("exp", (unknown("input:0"), known("input:1", 0.1, 9.0))))
    assert [one.finding.pair.slot for one in search.reads().inputs] == ["input:1"]


MEAN = known("input:0", 0.25, shape=(64,))


def written_to(phase="forward", op="add_", shape=(8, 8), **more):
    """An operator whose recorded input is its output."""
    golden = of(4.0, 8.1)
    rows = [known(slot, 0.25, shape=shape, golden=golden, **more) for slot in ("input:0", "output:0")]
    return Op(op, (*rows, known("input:1", 0.1, 9.0)), phase)


@pytest.mark.parametrize(
    ("errors", "same_shape", "one", "interval"),
    [
        ((), None, written_to(), Interval(0.0, HALF, "overwritten")),  # it rounds
        ((0.5,), None, written_to(), Interval(0.0, 0.5, "overwritten")),
        ((0.5,), 0.125, written_to(), Interval(0.0, 0.125, "overwritten")),
        ((0.5,), 1e-5, written_to(), Interval(0.0, HALF, "overwritten")),
        ((0.5,), 0.125, written_to("backward"), Interval(0.25, 0.25)),
        ((0.5,), 0.125, written_to(op="add"), Interval(0.25, 0.25)),
        # a gradient of a norm does not depend on running statistics
        ((0.5,), None, Op("batch_norm", (MEAN,), "backward"), Interval(0, 0, "overwritten")),
        ((0.5,), None, Op("batch_norm", (known("input:0", 0.25),), "backward"), Interval(0.25, 0.25)),
        ((), None, written_to(judged={"metric": "checksum"}), Interval(0.0, HALF, "overwritten")),
        ((), None, written_to(op="add", judged={"metric": "checksum"}), Interval(0.25, 0.25)),
    ],
)  # fmt: skip
def test_an_overwritten_input_has_the_latest_error_of_its_shape(errors, same_shape, one, interval):
    search = Search(one)
    search.see(*errors)
    if same_shape is not None:
        x = np.linspace(1.0, 2.0, 64).reshape(8, 8)
        search.seen.learn_shapes(case("sin", [], (x * (1 + same_shape), x)).node)
    found = search.reads().inputs[0].interval
    assert found == pytest.approx(interval)
    is_overwritten = search.intervals.is_overwritten(search.node, search.node.inputs[0])
    assert is_overwritten == (interval.source == "overwritten")


def test_an_input_of_known_producer_is_overwritten_no_running_statistic():
    search = Search(Op("sum", (MEAN._replace(slot="output:0"),)), Op("batch_norm", (MEAN,), "backward"))
    assert only(search.reads()) == Interval(0.25, 0.25)


A, B = known("input:0", 0.1), known("input:1", 0.2, 5.0)
LOST = unknown("input:1", 5.0)
MISSING = unknown("input:1", 5.0, verdict=Verdict.MISSING)
FIGURE = row("input:1", 3, 5, golden=of(5.0))


@pytest.mark.parametrize(
    ("op", "inputs", "more", "is_known", "is_measured"),
    [
        ("mul", (A, B), {}, True, True),
        ("mul", (A, LOST), {}, False, False),
        ("mul", (A, MISSING), {}, True, True),  # one side has no such input
        ("mul", (MISSING,), {}, False, False),
        ("mul", (MISSING, LOST), {}, False, False),
        ("mul", (), {}, True, True),
        ("mul", (A, FIGURE), {}, True, False),
        ("mul", (A, FIGURE), {"by_round_off": False}, False, False),
        ("mul", (FIGURE,), {}, True, False),
        # parameters alone are no data
        ("linear", (unknown("input:0"), B), {}, False, False),
        ("linear", (A, LOST), {}, False, False),
        ("linear", (A, MISSING), {}, True, True),
        ("linear", (MISSING,), {}, True, True),
    ],
)
def test_the_errors_of_inputs_are_known_if_each_has_a_record(op, inputs, more, is_known, is_measured):
    found = Search(Op(op, (*inputs, known("output:0", 0.1, 9.0))), **more).reads()
    assert (found.is_known, found.is_measured) == (is_known, is_measured)


def with_recorded(search, target, golden):
    """The last operator, of which the runs recorded inputs or not."""
    pair = search.node.pair
    sides = (pair.target_op._replace(reads_recorded=target), pair.golden_op._replace(reads_recorded=golden))
    search.node.pair = pair._replace(target_op=sides[0], golden_op=sides[1])
    return search


@pytest.mark.parametrize(
    ("op", "inputs", "target", "golden", "is_known"),
    [
        ("mul", (A, B), True, False, True),
        ("mul", (A, B), False, False, False),
        ("mul", (A, MISSING), True, False, False),
        ("mul", (A, MISSING), False, True, False),
        ("linear", (A, MISSING), False, True, True),  # a weight that one side has
    ],
)
def test_inputs_that_a_run_did_not_record_are_unknown(op, inputs, target, golden, is_known):
    found = with_recorded(Search(Op(op, (*inputs, known("output:0", 0.1, 9.0)))), target, golden)
    assert found.reads().is_known is is_known
    assert found.intervals.is_half_known(found.node) is False
    found.intervals.any_tainted = True
    assert found.intervals.is_half_known(found.node) is (not target and not golden)


def test_folded_weights_are_of_the_operator_itself():
    """The compiler made them, and the golden has no such tensor."""
    search = Search(Op("mul", (A, LOST)))
    pair = search.node.inputs[1].pair
    for stored, is_known in ((True, True), (False, False)):
        folded = pair._replace(golden=None, target=pair.target._replace(stored=stored))
        one = search.node.inputs[1]
        search.node.inputs[1] = one._replace(measurement=one.measurement._replace(pair=folded))
        assert search.reads().is_known is is_known


@pytest.mark.parametrize(("op", "slots"), [("mul", ["input:0", "output:0"]), ("add", [])])
def test_a_backward_reads_what_its_forward_saved(op, slots):
    forward = Op(op, (known("input:0", 0.25, 7.0), unknown("output:0", 8.0)), call="one")
    reads = Search(forward, Op(op, (A,), "backward", "one")).reads()
    assert [one.finding.pair.slot for one in reads.saved] == slots
    assert [one.interval for one in reads.saved] == ([Interval(0.25, 0.25), NO_DATA] if slots else [])
    assert reads.error == (0.25 if slots else 0.1)


def read_of(high, share=1.0, source="measured"):
    return ReadTensor(findings_of(Op("mul", (A,)))[0], Interval(0.0, high, source), share)


@pytest.mark.parametrize(
    ("read", "high"),
    [
        (read_of(0.5), 0.5),
        (read_of(0.5, 0.5), 0.25),
        (read_of(INF, 0.0), 0.0),
        (read_of(INF), INF),
        (read_of(0.5, source="written"), 0.5),
        (read_of(0.5, source="statistics"), 0.0),
        (read_of(INF, source="no data"), 0.0),
    ],
)
def test_the_share_of_a_measured_error_reaches_the_outputs(read, high):
    assert read.high == high
    assert OperatorReads([read], [read_of(0.125)], True, True, False).error == max(high, 0.125)


@pytest.mark.parametrize(
    ("is_measured", "reached", "error"), [(True, False, 0.5), (False, True, 0.5), (False, False, None)]
)
def test_the_incoming_error_is_known_if_it_was_measured_or_descends_from_a_root(is_measured, reached, error):
    assert OperatorReads([read_of(0.5)], [], True, is_measured, reached).error == error
    assert OperatorReads([], [read_of(0.5)], True, is_measured, reached).error == error
    assert OperatorReads([], [], True, is_measured, reached).error == (None if error is None else 0.0)


@pytest.mark.parametrize(
    ("source", "is_known", "is_measured"),
    [("measured", True, True), ("statistics", True, False), ("no data", False, False)],
)
def test_figures_that_agree_allow_errors(source, is_known, is_measured):
    one = Interval(0.0, 0.5, source)
    assert (one.is_known, one.is_measured) == (is_known, is_measured) and Interval() == (0.0, 0.0, "measured")


OUT = operand("output:0", 4.0, size=9.0)
BIAS = operand("input:2", 1.0, (64,), 7.0)


@pytest.mark.parametrize(
    ("op", "phase", "rows", "share"),
    [
        # of a sum: the part of the operand
        ("add", "forward", (operand("input:0", 1.0), OUT), 0.25),
        ("add", "forward", (operand("input:0", 8.0), OUT), 1.0),
        ("add", "forward", (operand("input:0", 1.0, (64,)), OUT), 0.25),
        ("sum", "forward", (operand("input:0", 1.0, (128, 64)), OUT), 1.0),  # a reduction
        ("add", "forward", (operand("input:0", 1.0), operand("output:0", 0.0, size=9.0)), 1.0),
        ("add", "forward", (operand("input:0", 1.0),), 1.0),
        ("add", "forward", (operand("input:0", 1.0, (1,)), OUT), 0.25),
        ("add", "forward", (operand("input:0", 1.0), OUT, operand("output:1", 2.0, size=8.0)), 0.25),
        ("add", "backward", (operand("input:0", 1.0), OUT), 1.0),
        ("lerp", "forward", (operand("input:0", 1.0), OUT), 1.0),
        ("mul", "forward", (operand("input:0", 1.0), OUT), 1.0),
        ("layer_norm", "forward", (operand("input:1", 1.0, (64,)), OUT), 1.0),
        ("add", "forward", (operand("input:0", 1.0, (0,)), OUT), 1.0),
        # of a product: the bias alone is a term
        ("linear", "forward", (operand("input:0", 1.0), OUT), 1.0),
        ("linear", "forward", (operand("input:2", 1.0), OUT), 1.0),
        ("linear", "forward", (BIAS, OUT), 0.25),
        ("linear", "forward", (BIAS._replace(slot="input:3"), OUT), 1.0),
        ("linear", "backward", (BIAS._replace(slot="input:0"), OUT), 1.0),
    ],
)
def test_the_share_of_an_input_is_its_part_of_a_sum(op, phase, rows, share):
    search = Search(Op(op, rows, phase))
    assert search.intervals.share_of(search.node, search.node.inputs[0]) == pytest.approx(share)
    assert search.reads().inputs[0].share == pytest.approx(share)


@pytest.mark.parametrize(
    ("op", "slot", "share"),
    [("linear", "output:0", 0.0), ("mul", "output:0", 0.0), ("tanh", "output:0", 1.0), ("attention", "output:0", 0.0),
     ("linear", "input:0", 1.0), ("mul", "input:0", 1.0), ("linear", "input:2", 0.0)],
)  # fmt: skip
def test_a_gradient_of_a_product_reads_its_operands_alone(op, slot, share):
    saved = [operand("input:0", 1.0, size=5.0), BIAS, operand("output:0", 1.0, size=6.0)]
    search = Search(Op(op, tuple(saved), call="one"), Op(op, (operand("input:0", 1.0), OUT), "backward", "one"))
    (one,) = [one for one in search.node.extra_inputs if one.pair.slot == slot]
    assert search.intervals.share_of(search.node, one) == share
    (read,) = [read for read in search.reads().saved if read.finding.pair.slot == slot]
    assert read.share == share


def test_an_error_without_an_upper_end_has_no_share():
    """The share is asked where it counts."""
    search = Search(Op("add", (row("input:0", 3, 5), known("input:1", 0.0, 5.0), OUT)))
    assert [one.share for one in search.reads().inputs] == [1.0, 1.0]


def graph_gradient(*inputs, before="MatMulV2", weight=None):
    """A gradient of a product in a graph, behind its forward."""
    forward = Op(
        before, (operand("input:0", 1.0, size=5.0), weight or operand("input:1", 1.0, size=6.0), BIAS,
                     operand("output:0", 1.0, size=8.0)), "",
    )  # fmt: skip
    return Search(forward, Op("MatMulV2Grad", (operand("input:0", 1.0), *inputs, OUT), ""))


X, W, Y = (operand(f"input:{at}", 1.0, size=size) for at, size in ((1, 5.0), (2, 6.0), (3, 8.0)))
VECTOR = operand("input:4", 1.0, (64,), 7.0)


@pytest.mark.parametrize(
    ("inputs", "asked", "share"),
    [
        ((X, W, Y), 3, 0.0),  # the product
        ((X, Y), 2, 1.0),  # an operand that is not among its inputs
        ((W, Y), 2, 1.0),
        ((X, W, Y), 1, 1.0),
        ((X, W, VECTOR), 3, 0.0),  # a bias beside a gradient and two operands
        ((X, operand("input:2", 1.0, (1, 2), 3.0), VECTOR), 3, 0.0),
        ((X, VECTOR), 2, 1.0),
        ((X, operand("input:2", 1.0, (1, 1), 3.0), VECTOR), 3, 1.0),
        ((X, operand("input:2", 1.0, (64,), 3.0), VECTOR), 3, 1.0),
    ],
)
def test_a_gradient_in_a_graph_reads_its_product_and_bias_without_effect(inputs, asked, share):
    search = graph_gradient(*inputs)
    assert search.node.reads_operands
    assert search.intervals.share_of(search.node, search.node.inputs[asked]) == share


@pytest.mark.parametrize("before", ["Add", "MatMulV2Grad"])
def test_a_gradient_in_a_graph_reads_what_no_product_wrote(before):
    search = graph_gradient(X, W, Y, before=before)
    assert search.intervals.share_of(search.node, search.node.inputs[3]) == 1.0


def test_operands_of_unknown_content_show_no_product():
    search = graph_gradient(X, W._replace(golden=None), Y, weight=W._replace(slot="input:1", golden=None))
    assert search.intervals.share_of(search.node, search.node.inputs[3]) == 1.0
