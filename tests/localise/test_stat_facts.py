"""The facts about all ranks that the noise test of statistics needs, by hand."""

import pytest

from npucmp.flow.operators import nodes_of
from npucmp.localise.stat_facts import RankFacts, ShiftedProduct, facts_of, merge_facts
from npucmp.model import Finding, Measurement, Operator, Pair, Statistics, TensorRef, Verdict

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
    for row, (own, other) in enumerate(refs, 5):
        both = {"bound": 0.0, "statistics": (own.statistics, other.statistics)}
        measured = Measurement(Pair(0, own.slot, op, op, own, other), **both)
        findings.append(Finding(measured, Verdict.UNKNOWN, "", row=row))
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
