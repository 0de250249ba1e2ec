"""The order of roots over steps and ranks, and what the search of one rank learns of the others."""

from dataclasses import replace

import pytest

from npucmp.localise.multi_rank import placed_roots, precedence, ranked_roots, side_by_side, with_roots
from npucmp.localise.parameter_drift import Updates
from npucmp.localise.rules import Rulebook
from npucmp.model import Cause, Root
from tests.localise.rank_steps import comparison_of, figures_of, node_of, numbers, off

X, Y, Z, W = (numbers(6, 6, seed=seed) for seed in range(4))
LARGE, SMALL = 0.01, 0.002


def root(cause="BORN", order=0):
    pair = node_of(order, "linear", [X], Y).pair
    return Root(0, pair, Cause(cause), "output:0", "rel_l2", 0.1, 1e-3, 0.0, 0.1, ())


GRAVEST = [("BORN", "GAP"), ("WORSENED",), ("SUSPECT",), ("UNKNOWN",), ("PROPAGATED",)]


def test_the_gravest_cause_comes_first():
    grades = [{precedence(0, Cause(cause)) for cause in some} for some in GRAVEST]
    assert all(len(some) == 1 for some in grades)
    assert [max(some) for some in grades] == sorted(max(some) for some in grades)
    assert len(set.union(*grades)) == len(GRAVEST)


@pytest.mark.parametrize(
    "earlier, later",
    [
        ((1, "UNKNOWN"), (2, "BORN")),  # an earlier step
        ((2, "UNKNOWN"), (1, "PROPAGATED")),  # propagated errors last
        ((1, "PROPAGATED"), (2, "PROPAGATED")),
    ],
)
def test_steps_come_before_causes(earlier, later):
    assert precedence(earlier[0], Cause(earlier[1])) < precedence(later[0], Cause(later[1]))


def test_roots_are_numbered_over_all_comparisons():
    """By step and cause, then by clock, then by rank; roots of one rank keep their order."""
    ranked = [
        *ranked_roots(1, 0, [(1, root("BORN")), (5, root("PROPAGATED"))]),
        *ranked_roots(0, 1, [(9, root("BORN", 1)), (9, root("BORN", 2)), (2, root("UNKNOWN"))]),
        *ranked_roots(0, 2, [(3, root("BORN")), (9, root("BORN"))]),
    ]
    found = placed_roots(ranked)
    places = {number: [one.place for one in roots] for number, roots in found.items()}
    assert places == {2: [1, 4], 1: [2, 3, 5], 0: [6, 7]}
    assert [one.pair.order for one in found[1]] == [1, 2, 0]
    assert placed_roots([]) == {}


def steps(*places):
    """Comparisons without any operators, by (step, rank)."""
    return [replace(comparison_of(rank, ("linear", [X], Y), step=step), matched={}) for step, rank in places]


def recorded_search(causes=()):
    """A search that finds a root of that cause in each rank of a step, by step, and notes what it gets."""
    calls = []

    def search(comparisons, updates, by_round_off, rules):
        step = comparisons[0].step
        calls.append(([one.rank for one in comparisons], [one.faulty for one in updates],
                      [one.are_first for one in updates], by_round_off, rules))  # fmt: skip
        roots = [(1, root(dict(causes)[step]))] if step in dict(causes) else []
        return [([*one.findings], roots) for one in comparisons]

    return search, calls


def test_steps_are_searched_in_their_order():
    search, calls = recorded_search()
    places = [(7, 1), (3, 0), (None, 0), (7, 0), (3, 1)]
    with_roots(steps(*places), walked=search)
    assert [call[0] for call in calls] == [[0], [0, 1], [1, 0]]
    assert [call[2] for call in calls] == [[True], [False, True], [False, False]]  # ranks with a step before
    assert all(call[3] is True and isinstance(call[4], Rulebook) for call in calls)
    own, known = recorded_search()
    rules = Rulebook()
    with_roots(steps((0, 0)), False, rules, own)
    assert known[0][3:] == (False, rules)


def test_the_golden_names_the_step_that_the_target_does_not():
    search, calls = recorded_search()
    some = steps((2, 0), (1, 0))
    some[0] = replace(some[0], target=replace(some[0].target, step=None))
    some[1] = replace(some[1], target=replace(some[1].target, step=None))
    with_roots(some, walked=search)
    assert [call[1] for call in calls] == [[False], [False]] and len(calls) == 2


@pytest.mark.parametrize(
    "causes, faulty",
    [
        ({}, [False, False, False]),
        ({0: "BORN"}, [False, True, True]),
        ({1: "UNKNOWN"}, [False, False, True]),
        ({0: "PROPAGATED"}, [False, False, False]),
    ],
)
def test_a_root_of_an_earlier_step_is_known(causes, faulty):
    search, calls = recorded_search(causes)
    found = with_roots(steps((0, 0), (1, 0), (2, 0)), walked=search)
    assert [call[1] for call in calls] == [[one] for one in faulty]
    assert [one.roots[0].cause.value for one in found if one.roots] == [*causes.values()]


def test_comparisons_keep_their_order_and_get_findings():
    search, _ = recorded_search({0: "BORN", 1: "BORN"})

    def without_findings(*given):
        return [([], roots) for _, roots in search(*given)]

    found = with_roots(steps((1, 0), (0, 1), (0, 0)), walked=without_findings)
    assert [(one.step, one.rank, one.roots[0].place) for one in found] == [(1, 0, 3), (0, 1, 1), (0, 0, 2)]
    assert all(one.findings == () for one in found)


# Ranks side by side

SUM = "Distributed.all_reduce.0.forward"


def searched(*ranks, **more):
    """(rank, operator, cause) of each root with its clock, in the order of the ranks."""
    results = side_by_side(ranks, [Updates()] * len(ranks), True, Rulebook(), **more)
    return [
        (one.rank, root.pair.operator.name, root.cause.value, clock)
        for one, (_, roots) in zip(ranks, results)
        for clock, root in roots
    ]


def reduced(rank, made, error=0.0, total=0.0, before=0):
    """A product, and its sum over ranks."""
    more = [("exp", [Z + at], W + at) for at in range(before)]
    return comparison_of(
        rank,
        *more,
        ("linear", [X, W + rank], off(made, error), {"name": f"linear.{rank}"}),
        ("all_reduce", [off(made, error)], off(Y + Z, total), {"name": SUM}),
        ("relu", [off(Y + Z, total)], off(W - 3, total), {"name": "relu.0"}),
    )


def test_clocks_of_one_rank_count_its_operators():
    one = comparison_of(
        0, ("exp", [X], Y), ("linear", [Y, W], off(Z, LARGE)), ("exp", [off(Z, LARGE)], off(X - 9, LARGE))
    )
    assert searched(one) == [(0, "linear.1", "BORN", 2), (0, "exp.2", "PROPAGATED", 3)]


def test_an_error_that_a_collective_brings_is_the_other_ranks():
    found = searched(reduced(0, Y, 0.0, LARGE), reduced(1, Z, LARGE, LARGE))
    assert found == [
        (0, SUM, "PROPAGATED", 2), (0, "relu.0", "PROPAGATED", 3),
        (1, "linear.1", "BORN", 1), (1, SUM, "PROPAGATED", 2), (1, "relu.0", "PROPAGATED", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("before", [0, 2])
def test_ranks_of_a_collective_share_its_clock(before):
    found = searched(reduced(0, Y, LARGE, LARGE, before), reduced(1, Z, 0.0, LARGE))
    assert found == [
        (0, "linear.0", "BORN", before + 1),
        (0, SUM, "PROPAGATED", before + 2), (0, "relu.0", "PROPAGATED", before + 3),
        (1, SUM, "PROPAGATED", before + 2), (1, "relu.0", "PROPAGATED", before + 3),
    ]  # fmt: skip


def test_a_sum_that_is_wrong_on_all_ranks_is_born_there():
    assert searched(reduced(0, Y, 0.0, LARGE), reduced(1, Z, 0.0, LARGE))[::2] == [
        (0, SUM, "BORN", 2), (1, SUM, "BORN", 2),
    ]  # fmt: skip


def test_a_sum_of_one_rank_alone_is_unknown():
    """Other ranks may have put the error in."""
    assert searched(reduced(0, Y, 0.0, LARGE))[0] == (0, SUM, "UNKNOWN", 2)


def test_evidence_names_the_rank_that_an_error_came_from():
    ranks = reduced(0, Y, 0.0, LARGE), reduced(3, Z, LARGE, LARGE)
    (_, roots), _ = side_by_side(ranks, [Updates()] * 2, True, Rulebook())
    first, second = (one.evidence[0] for _, one in roots)
    assert first.kind == "another rank" and first.facts["which"].value == 3 and first.facts["op"].value == SUM
    assert second.kind != "another rank"


def sent(rank, error=0.0, received=0.0):
    """Rank 0 makes a tensor that rank 1 reads; no send was recorded."""
    if rank == 0:
        more = [("exp", [Z - at], W - at) for at in range(3)]
        return comparison_of(0, *more, ("linear", [X, W], off(Y, error), {"name": "linear.0"}))
    return comparison_of(1, ("exp", [off(Y, error)], off(Z, received)))


def test_a_tensor_of_another_rank_brings_its_error():
    found = searched(sent(0, LARGE), sent(1, LARGE, LARGE))
    assert found == [(0, "linear.0", "BORN", 4), (1, "exp.0", "PROPAGATED", 5)]
    assert [one[:3] for one in searched(sent(0), sent(1, 0.0, LARGE))] == [(1, "exp.0", "BORN")]


@pytest.mark.parametrize("error, found", [(1e-7, []), (3e-7, [(1, SUM, "BORN", 2)])])
def test_outputs_of_a_collective_that_differ_between_ranks(error, found):
    """Each is within its limit, but the ranks of the golden have one tensor."""
    assert searched(reduced(0, Y), reduced(1, Z, 0.0, error)) == found
    assert searched(reduced(0, Y, 0.0, error), reduced(1, Z)) == [(0, *one[1:]) for one in found]


def test_evidence_names_the_rank_whose_output_another_one_does_not_hold():
    results = side_by_side([reduced(2, Y), reduced(5, Z, 0.0, 3e-7)], [Updates()] * 2, True, Rulebook())
    ((_, root),) = results[1][1]
    assert "differs from rank 2's" in root.because


# Statistics alone

STILL = (1,) * 6


@pytest.mark.parametrize(
    "shifts, found",
    [
        ([STILL], []),
        ([(1, 1, 1, 12, 1, 1)], [(0, 3, 0, 3)]),
        ([(1, 5, 1, 12, 1, 1)], []),  # an earlier operator shifted by nearly as much
        ([(1, 5, 1, 40, 1, 1)], [(0, 3, 0, 3)]),
        ([(12, 1, 1, 40, 1, 1)], [(0, 0, 0, 0)]),  # the first one that exceeds the noise
        ([(1, 1, 1, 12, 1, 1), (1, 1, 1, 12, 1, 1)], [(0, 3, 0, 6), (1, 3, 0, 6)]),
        ([(1, 1, 1, 12, 1, 1), STILL], [(0, 3, 0, 6)]),
        ([(1, 1, 1, 1, 12, 1), (1, 1, 1, 12, 1, 1)], [(1, 3, 0, 7)]),  # it comes before that of rank 0
        ([(1, 5, 1, 1, 1, 1), (1, 1, 1, 12, 1, 1)], []),  # the noise of all ranks counts
    ],
)
def test_operators_that_exceed_the_noise_of_all_ranks(shifts, found):
    """The rank, the number, how many operators before it shifted as much, and how many there are."""
    ranks = [figures_of(rank, *some) for rank, some in enumerate(shifts)]
    suspects = []
    for rank, (_, roots) in enumerate(side_by_side(ranks, [Updates()] * len(ranks), True, Rulebook())):
        for clock, one in roots:
            (said,) = [each.facts for each in one.evidence if each.kind == "others"]
            assert one.cause is Cause.SUSPECT and clock == one.pair.order + 1
            suspects.append((rank, one.pair.order, said["count"].value, said["all"].value))
    assert suspects == found


def test_only_statistics_have_noise():
    """Values prove what differs, and a tolerance of the user decides alone."""
    noisy = figures_of(0, 1, 1, 1, 200, 1, 1)
    assert [one[1:] for one in searched(noisy)] == [("relu.3", "SUSPECT", 4)]
    valued = comparison_of(1, ("exp", [X], Y))
    assert searched(noisy, valued) == []
    for by_round_off, rules in ((False, Rulebook()), (True, Rulebook(["suspected"]))):
        ((findings, roots),) = side_by_side([noisy], [Updates()], by_round_off, rules)
        assert roots == [] and len(findings) == 12


def test_the_same_operator_on_another_rank_may_shift_by_more():
    """Each rank has a suspect of its own if the operator is the same; no other operator is compared behind
    it."""
    ranks = figures_of(0, 1, 12, 1, 90), figures_of(1, 1, 70, 1, 90)
    found = [[one.pair.order for _, one in roots] for _, roots in
             side_by_side(ranks, [Updates()] * 2, True, Rulebook())]  # fmt: skip
    assert found == [[1], [1]]
