"""The facts about all ranks that the noise test of statistics needs, by hand."""

import math

import pytest

from npucmp.flow.operators import nodes_of
from npucmp.localise.stat_facts import (
    Contribution,
    History,
    Level,
    NoiseBaseline,
    RankFacts,
    ShiftedProduct,
    container_modules,
    facts_of,
    merge_facts,
    reuse,
)
from npucmp.model import Finding, Measurement, Operator, Pair, Statistics, TensorRef, Verdict
from tests.localise.stat_craft import HALF, SINGLE, Op, findings_of, nodes, of, row

FIGURES = Statistics(4.0, -2.0, 0.1, 10.0)
REDUCED = 2.0**-12
SMALL, LARGE = 2.0**-23, 1e-3  # shifts of operands: one hides nothing, behind the other a product proves nothing


def rank(*products, units=(), mixed=(0, 0), shift=None, most=0.0):
    return RankFacts(frozenset(), dict(units), mixed, shift, products, most)


def product(name, is_reduced, incoming=SMALL, before=0.0):
    return ShiftedProduct(name, incoming, before, is_reduced)


VOTES = [
    ([], 0.0),
    ([rank()], 0.0),
    ([rank(product("a", True))], REDUCED),  # one product decides
    ([rank(product("a", False))], 0.0),
    ([rank(product("a", None))], 0.0),
    ([rank(product("a", True, LARGE))], 0.0),
    ([rank(product("a", True), product("b", False))], 0.0),
    ([rank(product("a", True), product("b", True), product("c", False))], REDUCED),  # twice as many
    ([rank(product("a", True), product("b", True), product("c", False), product("d", False))], 0.0),
    ([rank(product("a", True), product("b", False, LARGE))], REDUCED),
    ([rank(product("a", True)), rank(product("a", False))], 0.0),  # ranks disagree
    ([rank(product("a", True, None, SMALL))], REDUCED),
    ([rank(product("a", True, None, LARGE))], 0.0),
    ([rank(most=LARGE), rank(product("a", True, None, SMALL))], 0.0),  # what an earlier rank wrote
    ([rank(most=LARGE), rank(product("a", True, SMALL))], REDUCED),
]


@pytest.mark.parametrize(("ranks", "reduced"), VOTES)
def test_products_whose_operands_hardly_shifted_show_a_reduced_precision(ranks, reduced):
    assert merge_facts(ranks).reduced == reduced


@pytest.mark.parametrize(
    ("units", "coarse"),
    [({}, 0.0), ({0.5: 1, 0.25: 9}, 0.5), ({0.5: 1, 0.25: 10}, 0.25), ({0.25: 1}, 0.25)],
)
def test_the_coarsest_type_of_a_tenth_of_the_operators_counts(units, coarse):
    assert merge_facts([rank(units=units)]).coarse == coarse
    assert merge_facts([rank(units=units), rank(units=units)]).coarse == coarse


@pytest.mark.parametrize(("mixed", "apart"), [((1, 10), False), ((2, 10), True), ((0, 0), False)])
def test_runs_work_in_other_types_if_more_than_a_tenth_of_their_floats_does(mixed, apart):
    assert merge_facts([rank(mixed=mixed)]).apart is merge_facts([rank(mixed=mixed)] * 2).apart is apart


@pytest.mark.parametrize(
    ("shifts", "first", "drift", "unproven"),
    [
        ([None], False, 0.0, 0.125),
        ([0.0], False, 0.0, 0.0),
        ([0.25, None, 0.5], False, 0.5, 0.0),
        ([0.5], True, 0.0, 0.125),
        ([], False, 0.0, 0.125),
    ],
)
def test_recorded_parameters_show_how_far_updates_moved_them(shifts, first, drift, unproven):
    found = merge_facts([rank(shift=one) for one in shifts], first, 0.125)
    assert (found.drift, found.unproven, found.first) == (drift, unproven, first)


def facts(*tensors):
    """The facts of one product, whose tensors are (slot, type, figures of the target, those of the golden)."""
    refs = [[TensorRef(slot, dtype, (64, 64), statistics=one) for one in figures] for slot, dtype, *figures in tensors]
    op = Operator("linear.0", "linear", "linear", "forward", 0, tuple(one for _, one in refs), call="linear.0")
    findings = []
    for number, (own, other) in enumerate(refs, 5):
        both = {"bound": 0.0, "statistics": (own.statistics, other.statistics)}
        measured = Measurement(Pair(0, own.slot, op, op, own, other), **both)
        findings.append(Finding(measured, Verdict.UNKNOWN, "", row=number))
    return facts_of(nodes_of(findings), findings)


UNSEEN = None
OUT = ("output:0", "float32", FIGURES, FIGURES)


@pytest.mark.parametrize(
    ("read", "incoming", "shift"),
    [
        ([("input:0", "float32", FIGURES, FIGURES)], 0.0, None),
        ([("input:0", "float32", UNSEEN, FIGURES)], float("inf"), None),  # figures of one side show no shift
        ([("input:0", "int32", FIGURES, FIGURES)], float("inf"), None),
        ([("input:0", "float32", FIGURES, FIGURES), ("input:1", "float32", FIGURES, FIGURES)], 0.0, 0.0),
        ([("input:0", "float32", FIGURES, FIGURES), ("input:1", "float32", FIGURES, UNSEEN)], 0.0, None),
        ([], None, None),
    ],
)
def test_figures_of_floats_on_both_sides_show_a_shift(read, incoming, shift):
    found = facts(*read, OUT)
    assert [one.incoming for one in found.products] == [incoming] and found.parameter_shift == shift


def test_a_product_without_figures_or_of_another_type_is_no_float32_product():
    assert facts(("output:0", "float32", UNSEEN, UNSEEN)).products == ()
    assert facts(("output:0", "float16", FIGURES, FIGURES)).products == ()
    (own,) = facts(OUT).products
    assert (own.name, own.before, own.is_reduced) == ("linear.0", 0.0, False)


NORM = 3
A, W = row("input:0", golden=of(5.0), dtype="float32"), row("input:1", golden=of(6.0), dtype="float32")


def rank_of(*operators):
    """The facts of a rank whose rows begin at a later number."""
    rows = [one._replace(row=one.row + 7, cache=None) for one in findings_of(*operators)]
    return facts_of(nodes_of(rows), rows)


def product_of(*shifts, inputs=(A, W), op="linear", phase="forward", **more):
    """A float32 product whose norm shifted by as much, in roundings."""
    outputs = [
        row(f"output:{at}", NORM, one, golden=of(9.0 + 2 * at), **{"dtype": "float32", **more})
        for at, one in enumerate(shifts)
    ]
    return Op(op, (*inputs, *outputs), phase)


LOW, HIGH = 2.0**-17 / SINGLE, 2.0**-8.5 / SINGLE


@pytest.mark.parametrize(
    ("operator", "is_reduced"),
    [
        (product_of(0.999 * LOW), False),
        (product_of(1.001 * LOW), True),
        (product_of(0.999 * HIGH), True),
        (product_of(1.001 * HIGH), None),  # another fault
        (product_of(0.5 * LOW, 2 * LOW), False),
        (product_of(2 * LOW, 3 * LOW), True),
        (product_of(2 * LOW, 1.1 * HIGH), None),
        # roundings of a weight that 64 or 256 elements share do not average out
        (product_of(7.99 * HIGH, inputs=(A, W._replace(shape=(64,)))), True),
        (product_of(8.01 * HIGH, inputs=(A, W._replace(shape=(64,)))), None),
        (product_of(15.99 * HIGH, inputs=(A, W._replace(shape=(16,)))), True),
        (product_of(1.01 * HIGH, inputs=(A, W._replace(shape=(15,)))), None),  # too few for an operand
        (product_of(63.9 * HIGH, inputs=()), True),
        (product_of(64.1 * HIGH, inputs=()), None),
    ],
)
def test_a_product_shifts_as_far_as_reduced_operands_shift_it(operator, is_reduced):
    (found,) = rank_of(operator).products
    assert found.is_reduced is is_reduced


@pytest.mark.parametrize(
    ("operator", "count"),
    [
        (product_of(2 * LOW), 1),
        (product_of(2 * LOW, op="add"), 0),
        (product_of(2 * LOW, phase="backward"), 0),
        (product_of(2 * LOW, dtype="float64"), 1),  # figures are written in float32
        (product_of(2.0, dtype="float16"), 0),
        (product_of(2 * LOW, dtype="int32"), 0),
        (product_of(), 0),
    ],
)
def test_products_of_float32_in_the_forward_pass_count(operator, count):
    assert len(rank_of(operator).products) == count


def test_a_product_has_the_largest_incoming_shift_and_that_of_earlier_outputs():
    read = row("input:0", NORM, 3, golden=of(5.0), dtype="float32"), row("input:1", 0, 8, golden=of(6.0))
    integers = A._replace(dtype="int32")
    first, quiet = product_of(5, inputs=read), product_of(2, inputs=(integers,))
    found = rank_of(first, Op("tanh", (row("output:0", 0, 9, golden=of(7.0)),)), quiet, product_of(1, inputs=()))
    assert [one.name for one in found.products] == ["linear.0", "linear.2", "linear.3"]
    assert [one.incoming for one in found.products] == pytest.approx([8 * HALF, math.inf, None])
    assert [one.before for one in found.products] == pytest.approx([0.0, 9 * HALF, 9 * HALF])
    assert found.most == pytest.approx(9 * HALF)
    assert found.parameter_shift == pytest.approx(8 * HALF)


def test_operators_count_with_the_coarsest_type_that_they_write():
    half, single = row("output:0", dtype="bfloat16"), row("output:1", dtype="float32", golden=of(8.0))
    found = rank_of(
        Op("tanh", (A, half, single)), Op("tanh", (A,)), Op("tanh", (A._replace(dtype="float16"), single)),
        Op("argmax", (A, half._replace(dtype="int32"))), Op("to", (A, half._replace(dtype=("float32", "float16")))),
    )  # fmt: skip
    assert found.units == {HALF: 1, SINGLE: 2, 2.0**-11: 1}
    assert found.mixed == (1, 9)  # float tensors, inputs among them
    assert facts_of([], []) == RankFacts(frozenset(), {}, (0, 0), None, (), 0.0)


def test_modules_with_operators_inside_are_found_by_scopes_and_paths():
    quiet = (row("output:0"),)
    operators = (
        Op("tanh", quiet, more={"scope": "inner"}, name="a"), Op("mul", quiet, more={"scope": "outer"}, name="inner"),
        Op("exp", quiet, "backward", more={"path": "x.y.z"}, name="c"), Op("exp", quiet, name="d"),
    )  # fmt: skip
    names = {"inner", "outer", "backward x.y", "backward x"}
    assert container_modules(nodes(*operators)) == names == rank_of(*operators).containing
    assert merge_facts([rank_of(*operators[:1]), rank_of(*operators[2:])]).containing == names - {"outer"}


@pytest.mark.parametrize(
    ("sizes", "elements", "last", "times"),
    [
        ((64, 4096), 4096, (), 8.0),
        ((4096, 64), 4096, (2,), 8.0),
        ((16, 15), 4096, (), 16.0),
        ((15,), 64, (), 8.0),
        ((15,), 64, (4,), 4.0),
        ((), 64, (4,), 4.0),
        ((), 64, (), 8.0),
        ((), 64, (0,), 8.0),
        ((64,), 16, (), 1.0),
    ],
)
def test_elements_of_the_smallest_operand_are_shared(sizes, elements, last, times):
    rows = [row(f"input:{at}", shape=(size,), golden=of(5.0 + at)) for at, size in enumerate(sizes)]
    (node,) = nodes(Op("linear", (*rows, row("output:0"))))
    assert reuse(node, elements, last) == times
    saved = Op("linear", tuple(rows), call="one"), Op("linear", (row("output:0"),), "backward", "one")
    assert reuse(nodes(*saved)[-1], elements, last) == times


def test_the_usual_shift_of_an_unrecorded_tensor_needs_operators_before_it():
    assert NoiseBaseline(0.5, last=0.25).unseen == 0.0
    assert NoiseBaseline(0.5, last=0.25, seen=1).unseen == 0.5 and NoiseBaseline(0.25, last=0.5, seen=1).unseen == 0.5


@pytest.mark.parametrize(("incoming", "kind"), [(0.9, 1.0), (1.0, 0.0), (1.1, 0.0)])
def test_an_operator_that_adds_no_shift_makes_no_noise_of_its_kind(incoming, kind):
    history = History()
    history.add(Contribution("tanh", Level(0.5, 1.0), incoming, False, False, False), history.before("tanh"))
    assert history.before("tanh").kind.sums == kind and history.before("exp").kind == Level()


def test_no_rank_has_no_facts():
    found = merge_facts([])
    assert (found.containing, found.coarse, found.apart, found.drift, found.reduced) == (
        frozenset(),
        0.0,
        False,
        0.0,
        0.0,
    )


def test_a_product_at_the_bar_shifted_by_rounding():
    """All numbers are exact."""
    at_bar = row("output:0", NORM, LOW, golden=of(9.0, 64.0), dtype="float32")
    assert rank_of(Op("linear", (A, W, at_bar))).products[0].is_reduced is False
    assert merge_facts([rank(product("a", True, 8 * SINGLE))]).reduced == REDUCED
    assert merge_facts([rank(product("a", True, 8.001 * SINGLE))]).reduced == merge_facts([]).unproven == 0.0
