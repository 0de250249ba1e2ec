"""The operators whose values decide what a comparison leaves open, and their order."""

import pytest

from npucmp.flow.edges import links
from npucmp.localise.next_dump import OpenRoot, OpenRoots, in_order
from npucmp.model import Cause, Comparison, Finding, Measurement, Root, Run
from tests.localise.networks import SMALL, moments, network, paired

CHAIN = ["relu x -> y", "tanh y -> z", "exp z -> q", "erf q -> a", "cos a -> b"]


def root(findings: list[Finding], order: int, place: int = 1, cause: Cause = Cause.SUSPECT) -> Root:
    pair = next(one.pair for one in findings if one.pair.order == order)
    return Root(place, pair, cause, "output:0", "", None, 0.0, None, None, ())


def open_roots(findings: list[Finding], *roots: Root) -> OpenRoots:
    operators = {one.pair.order: one.pair.operator for one in findings}
    run = Run("", "", tuple(operators.values()))
    return OpenRoots.of(Comparison(run, run, findings, roots, {}), lambda: [*links(findings)])


def orders(findings: list[Finding], order: int, cause: Cause = Cause.SUSPECT) -> list[tuple[int, ...]]:
    """The operators that are wanted for one root."""
    return [one.orders for one in open_roots(findings, root(findings, order, cause=cause)).roots]


def figures(*lines: str) -> list[Finding]:
    return network(*lines, figures=True, **SMALL)


def measured(findings: list[Finding], *places: int) -> list[Finding]:
    """The findings with values of the operators at these places."""
    return [
        one._replace(measurement=Measurement(one.pair, moments("x", ""))) if one.pair.order in places else one
        for one in findings
    ]


@pytest.mark.parametrize(
    "lines, order, found",
    [
        (CHAIN, 2, (2, 1, 3)),
        (CHAIN, 0, (0, 1)),
        (CHAIN, 4, (4, 3)),
        (CHAIN[:1], 0, (0,)),
        (["relu x -> y", "tanh b -> z", "cos y -> q", "exp z q -> a"], 3, (3, 1, 2)),
        (["relu x -> y", "tanh b -> z", "cos y -> q", "exp z y -> a"], 3, (3, 0, 1)),
        (["relu x -> y", "tanh y -> z", "cos b -> q", "exp y -> a"], 0, (0, 1, 3)),
        (["relu x -> y", "tanh b -> z", "exp c -> a", "cos d -> q"], 1, (1, 0, 2)),  # the operators before and behind
        (["relu x -> y", "tanh b -> z", "exp c -> a", "cos z -> q"], 1, (1, 0, 3)),  # the operator before
        (["relu x -> y", "tanh b -> z", "exp y -> a", "cos d -> q"], 2, (2, 0, 3)),  # the operator behind
        (["relu@r x -> y", "tanh b -> z", "exp c -> a", "relu.backward@r g -> h"], 3, (3, 0)),
        (["relu@r x -> y", "tanh b -> z", "exp c -> a", "relu.backward@r g -> h"], 0, (0, 3)),
        (["relu@r x -> y", "tanh b -> z", "exp c -> a", "relu.backward@s g -> h"], 3, (3, 2)),
        (["relu x -> y", "add_ y -> y", "cos y -> q"], 1, (1, 0, 2)),
        (["relu -> y", "tanh y ->", "cos y ->"], 0, (0, 1, 2)),
    ],
)
def test_an_operator_with_its_producers_and_its_consumers(lines, order, found):
    assert orders(figures(*lines), order) == [found]


def test_the_operators_of_one_run_are_neighbours_too():
    findings = figures("relu x -> y", "golden tanh y -> z", "exp z -> q")
    assert orders(findings, 2) == [(2, 1)]
    assert orders(findings, 0) == [(0, 1)]


@pytest.mark.parametrize("name", ["relu.0.forward", "tanh.1.forward"])
def test_a_module_around_other_operators_is_no_neighbour(name):
    findings = figures(*CHAIN[:3])
    inside = findings[4].pair.target_op._replace(scope=name)
    scoped = [paired(one, target_op=inside) if one.pair.order == 2 else one for one in findings]
    assert orders(scoped, 1) == [(1, 2) if name == "relu.0.forward" else (1, 0, 2)]


@pytest.mark.parametrize("path, found", [("model.layer.0", (1, 2)), ("model.layer.1", (1, 0, 2)), ("", (1, 0, 2))])
def test_a_module_is_known_by_its_path(path, found):
    findings = figures(*CHAIN[:3])
    for at, one in enumerate(findings):
        own = {0: path, 1: "", 2: "model.layer.0.fc"}[one.pair.order]
        findings[at] = paired(one, target_op=one.pair.target_op._replace(path=own))
    assert orders(findings, 1) == [found]


@pytest.mark.parametrize(
    "places, cause, found",
    [
        ((), Cause.BORN, True),
        ((0, 2, 3, 4), Cause.BORN, True),
        ((1,), Cause.BORN, False),
        ((1,), Cause.GAP, True),
        ((1,), Cause.UNKNOWN, True),
        ((1,), Cause.SUSPECT, False),
        ((1,), Cause.WORSENED, False),
        ((0, 1), Cause.GAP, False),
        ((0, 1), Cause.UNKNOWN, False),
        ((0, 1, 2, 3, 4), Cause.GAP, False),
        ((), Cause.PROPAGATED, False),
    ],
)
def test_a_root_is_open_unless_the_values_around_it_are_known(places, cause, found):
    findings = measured(figures(*CHAIN), *places)
    assert orders(findings, 1, cause) == [(1, 0, 2)] * found


@pytest.mark.parametrize("sides, found", [("tg", True), ("t", False), ("g", False)])
def test_a_root_is_open_if_no_run_recorded_its_inputs(sides, found):
    findings = measured(figures(*CHAIN), 0, 1)
    silent = findings[2].pair.target_op._replace(reads_recorded=False)
    changes = {name: silent for letter, name in (("t", "target_op"), ("g", "golden_op")) if letter in sides}
    findings = [paired(one, **changes) if one.pair.order == 1 else one for one in findings]
    assert bool(orders(findings, 1)) is found


def test_an_operator_of_one_run_is_open_if_that_run_recorded_no_inputs():
    findings = [paired(one, golden_op=None, golden=None) for one in figures(*CHAIN)]
    assert orders(findings, 1) == []
    silent = findings[2].pair.target_op._replace(reads_recorded=False)
    assert orders([paired(one, target_op=silent) for one in findings], 1) != []


@pytest.mark.parametrize(
    "change, found",
    [
        ({}, True),
        ({"target": None}, False),
        ({"golden": None}, False),
        ({"unlike": "shapes differ"}, False),
        ({"empty": 1}, False),
    ],
)
def test_a_tensor_lacks_values_if_both_runs_have_it_and_can_be_compared(change, found):
    findings = figures("relu x -> y", "tanh y -> e" if "empty" in change else "tanh y -> z")
    findings = measured(findings, 0) if "empty" in change else findings
    findings[2] = findings[2]._replace(measurement=Measurement(findings[2].pair, moments("x", "")))
    if "unlike" in change:
        findings[3] = findings[3]._replace(measurement=Measurement(findings[3].pair, unlike=change["unlike"]))
    elif "empty" not in change:
        findings[3] = paired(findings[3], **change)
    assert bool(orders(findings, 1)) is found


def test_the_roots_come_by_priority_with_a_pair_of_each_operator():
    findings = figures(*CHAIN)
    found = open_roots(findings, root(findings, 3, 2), root(findings, 1, 1), root(findings, 2, 3, Cause.PROPAGATED))
    assert found.roots == (OpenRoot(1, (1, 0, 2)), OpenRoot(2, (3, 2, 4)))
    assert {order: pair.operator.op_type for order, pair in found.pairs.items()} == dict(
        zip((1, 0, 2, 3, 4), ("tanh", "relu", "exp", "erf", "cos"))
    )
    assert open_roots(findings) == open_roots(findings, root(findings, 2, 3, Cause.PROPAGATED)) == ((), {})


def test_a_comparison_without_open_roots_reads_no_edges():
    findings = figures(*CHAIN)
    run = Run("", "", ())
    assert OpenRoots.of(Comparison(run, run, findings, (), {}), lambda: 1 / 0) == ((), {})


@pytest.mark.parametrize(
    "roots, found",
    [
        ([], []),
        ([[], []], []),
        ([[OpenRoot(1, (5, 4, 6))]], [(0, 5), (0, 4), (0, 6)]),
        ([[OpenRoot(1, (5, 1, 6))]], [(0, 5), (0, 6), (0, 1)]),
        ([[OpenRoot(1, (5, 2, 9)), OpenRoot(2, (6, 5))]], [(0, 5), (0, 2), (0, 9), (0, 6)]),
        ([[OpenRoot(1, (5, 2)), OpenRoot(2, (9, 3, 8))]], [(0, 5), (0, 2), (0, 3), (0, 8), (0, 9)]),
        ([[OpenRoot(1, (5,)), OpenRoot(2, (7, 3))]], [(0, 5), (0, 3), (0, 7)]),  # the same distance
        ([[OpenRoot(2, (5,))], [OpenRoot(1, (9, 8))]], [(1, 9), (1, 8), (0, 5)]),
        ([[OpenRoot(2, (1,))], [OpenRoot(1, (9,)), OpenRoot(3, (1,))], [OpenRoot(4, (8,))]],
         [(1, 9), (1, 1), (2, 8), (0, 1)]),
        ([[OpenRoot(1, (2,))], [OpenRoot(1, (1,))]], [(0, 2), (1, 1)]),  # the first of two equal places
    ],
)  # fmt: skip
def test_the_first_root_and_its_neighbours_come_first(roots, found):
    assert in_order(roots) == found
