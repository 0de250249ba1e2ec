"""The digest of one rank: the tensors that others may hold too, by hand; and the groups that differ."""

from dataclasses import replace

import numpy as np
import pytest

from npucmp.flow.contents import content_of
from npucmp.localise.rank_digest import (
    AGREES,
    DIFFERENT,
    GRADIENT,
    OPEN,
    SIZE,
    TOLD,
    TOLD_FORWARD,
    WEIGHT,
    RankDigest,
    joint_of,
    odd_ones,
)
from npucmp.model import Statistics, Verdict
from tests.localise.rank_steps import comparison_of, node_of, numbers, off

X, Y, Z, W = (numbers(4, 4, seed=seed) for seed in range(4))
BACK = {"phase": "backward"}


def joint(*calls, rank=0, step=0):
    return joint_of(comparison_of(rank, *calls, step=step))


def test_the_tensors_that_other_ranks_may_hold():
    found = joint(
        ("linear", [X, W], Y),
        ("all_reduce", [Y], Z),
        ("exp", [Z], X + 1),
        ("exp", [X + 2], X + 3, BACK),
        ("all_reduce", [X + 3], X + 4),
        ("all_gather", [X + 3], X + 5),
        ("linear", [X + 4, W + 1], X + 6, {"slot": "grad:weight"}),
        rank=3,
        step=2,
    )
    assert (found.step, found.rank) == (2, 3)
    assert dict(zip(found.names, found.kinds)) == {
        ("linear.0", "input:1"): WEIGHT, ("all_reduce.1", "output:0"): TOLD_FORWARD,
        ("all_reduce.4", "output:0"): TOLD, ("all_gather.5", "output:0"): TOLD,
        ("linear.6", "input:1"): WEIGHT, ("linear.6", "grad:weight"): GRADIENT,
    }  # fmt: skip
    assert len(found.verdicts) == len(found.names) and len(found.golden) == len(found.target) == 6 * SIZE


@pytest.mark.parametrize(
    "call",
    [
        ("send", [X], Y),
        ("recv", [X], Y),
        ("exp", [X], Y),
        ("all_reduce", [X], np.ones((4, 4))),  # equal by chance
        ("linear", [X, np.zeros((4, 4))], Y),
    ],
)
def test_tensors_that_ranks_need_not_share(call):
    found = joint(call)
    assert (found.names, found.kinds, found.verdicts, found.golden, found.target) == ((), "", "", b"", b"")


def test_a_run_without_a_backward_pass_has_results_of_the_forward_pass():
    assert joint(("exp", [X], Y), ("all_reduce", [Y], Z)).kinds == TOLD_FORWARD
    assert joint(("all_reduce", [Y], Z), ("exp", [X], Y, BACK)).kinds == TOLD_FORWARD
    assert joint(("exp", [X], Y, BACK), ("all_reduce", [Y], Z)).kinds == TOLD
    first = joint(("all_reduce", [X], Y, {"group": (0, 1), **BACK}), ("exp", [Y], Z, BACK))
    assert (first.kinds, first.groups) == (TOLD, ())


def changed(comparison, **more):
    """The comparison with another finding for its output."""
    findings = [*comparison.findings[:-1], comparison.findings[-1]._replace(**more)]
    return joint_of(replace(comparison, findings=tuple(findings)))


@pytest.mark.parametrize("verdict", [*Verdict])
def test_letters_of_verdicts(verdict):
    known = {"match": AGREES, **dict.fromkeys(("diverged", "nonfinite", "shape"), DIFFERENT)}
    found = changed(comparison_of(0, ("all_reduce", [X], Y)), verdict=verdict)
    assert found.verdicts == known.get(verdict.value, OPEN)


def test_digests_of_both_sides():
    """Those of the golden are contents, and equal tensors of a target have equal digests."""
    one, other = (
        joint(("all_reduce", [X], off(Y, 0.01)), ("all_reduce", [Y], Z)),
        joint(("all_reduce", [W], Y)),
    )
    content = content_of(node_of(0, "exp", [Y], X).inputs[0])
    assert one.digests(0)[0] == other.digests(0)[0] == content.to_bytes(SIZE, "big")
    assert one.digests(0)[1] != other.digests(0)[1]
    assert joint(("all_reduce", [W + 1], off(Y, 0.01))).digests(0)[1] == one.digests(0)[1]
    assert one.digests(1)[0] == content_of(node_of(0, "exp", [Z], X).inputs[0]).to_bytes(SIZE, "big")
    assert one.digests(0) != one.digests(1) and [len(each) for each in one.digests(1)] == [SIZE, SIZE]


def recorded(target, golden=Statistics(2.0, -1.0, 0.5, 3.0), checksum=""):
    """The digest of a result whose statistics alone were recorded."""
    comparison = comparison_of(0, ("all_reduce", [X], Y))
    one = comparison.findings[-1]
    pair = one.pair._replace(
        target=one.pair.target._replace(statistics=target, checksum=checksum),
        golden=one.pair.golden._replace(statistics=golden),
    )
    measured = one.measurement._replace(pair=pair, moments=None, statistics=(target, golden))
    return changed(comparison, measurement=measured).digests(0)[1]


def test_digests_of_statistics():
    """Figures that were not recorded count as well, and a checksum before them."""
    full, partial = Statistics(2.0, -1.0, 0.5, 3.0), Statistics(2.0, -1.0, None, 3.0)
    assert recorded(full) == recorded(Statistics(*full)) != recorded(full._replace(mean=0.25))
    assert recorded(partial) == recorded(Statistics(*partial)) != recorded(partial._replace(norm=4.0))
    assert len({recorded(full), recorded(partial), recorded(full._replace(max=2)._replace(min=-2))}) == 3
    assert recorded(full, checksum="aa") != recorded(full) and recorded(full, checksum="aa") != recorded(
        full, checksum="bb"
    )
    assert recorded(full, checksum="aa") == recorded(partial, checksum="aa")


def test_groups_of_the_forward_pass():
    found = joint(
        ("all_reduce", [X], Y, {"group": (2, 1)}),
        ("all_reduce", [X + 1], Y + 1, {"group": (1, 2)}),
        ("all_gather", [X + 2], Y + 2, {"group": (0, 1)}),
        ("exp", [X + 3], Y + 3, {"group": (5, 6)}),
        ("exp", [X + 4], Y + 4, BACK),
        ("all_reduce", [X + 5], Y + 5, {"group": (7, 8)}),
    )
    assert found.groups == ((1, 2), (0, 1))


def test_the_first_call_with_each_other_rank():
    found = joint(
        ("send", [X], Y, {"peer": 2}),
        ("recv", [X + 1], Y + 1, {"peer": 2}),
        ("recv", [X + 2], Y + 2, {"peer": 0}),
        ("send", [X + 3], Y + 3),
        ("send", [X + 4], Y + 4, {"peer": 0}),
        ("broadcast", [X + 5], Y + 5, {"peer": 7}),
    )
    assert found.peers == ((2, True), (0, False))


def test_an_operator_of_the_target_alone_has_no_digest():
    comparison = comparison_of(0, ("all_reduce", [X], Y))
    one = comparison.findings[-1]
    lone = one.measurement._replace(pair=one.pair._replace(golden_op=None))
    assert changed(comparison, measurement=lone).names == ()


# Groups of ranks


def held(rank, letters, step=0, verdicts="", kinds="", golden=""):
    """A letter for the content of each tensor of the target; that of the golden is one of its own for each
    tensor."""

    def made(text):
        return b"".join(letter.encode().ljust(SIZE) for letter in text)

    names = tuple((f"op{at}", "input:1") for at in range(len(letters)))
    verdicts, kinds = verdicts or AGREES * len(letters), kinds or WEIGHT * len(letters)
    return RankDigest(step, rank, names, kinds, verdicts, made(golden or "g" * len(letters)), made(letters))


def summary(*joints):
    return [(one.step, one.ranks, one.others, one.tensors, one.wrong) for one in odd_ones(joints)]


X1, X2 = DIFFERENT, OPEN


@pytest.mark.parametrize(
    "joints, found",
    [
        ([], []),
        ([held(0, "a")], []),
        ([held(0, "a"), held(1, "b")], [(0, (0, 1), (0, 1), 1, False)]),
        ([held(0, "a"), held(1, "b"), held(2, "a")], [(0, (1,), (0, 2), 1, False)]),
        ([held(0, "a"), held(1, "b"), held(2, "c")], [(0, (0, 1, 2), (0, 1, 2), 1, False)]),
        ([held(0, "a"), held(1, "b"), held(2, "b"), held(3, "a")], [(0, (0, 1, 2, 3), (0, 1, 2, 3), 1, False)]),
        ([held(2, "b"), held(0, "a"), held(1, "b")], [(0, (0,), (1, 2), 1, False)]),
        ([held(1, "b", 0, X1), held(0, "a"), held(2, "c", 0, X1)], [(0, (1, 2), (0,), 1, True)]),
        ([held(0, "a", 0, X2), held(1, "b", 0, X1), held(2, "a", 0, X2)], [(0, (1,), (0, 2), 1, True)]),
        ([held(0, "a", 0, X1), held(1, "b", 0, X1)], [(0, (0, 1), (0, 1), 1, True)]),
        ([held(0, "a", None), held(1, "b", None)], [(None, (0, 1), (0, 1), 1, False)]),
        ([held(0, "ab"), held(1, "cd")], [(0, (0, 1), (0, 1), 2, False)]),
        ([held(0, "a", 5), held(1, "b", 5), held(0, "a", 3), held(1, "b", 3)], [(3, (0, 1), (0, 1), 1, False)]),
        ([held(0, "a", 3), held(1, "b", 4)], []),  # of two steps
        ([held(None, "a"), held(None, "b")], []),
        ([held(0, "x", 0, X1), held(1, "y", 0, X1, golden="h")], []),  # split by design
        ([held(0, "a"), held(1, "b", golden="h"), held(2, "a"), held(3, "x", 0, X1, golden="h")],
         [(0, (3,), (1,), 1, True)]),
        ([held(0, "y", 0, X1), held(1, "x", 0, X1), held(2, "x", 0, X1)], [(0, (0,), (1, 2), 1, True)]),
        ([held(0, "x", 0, X1), held(1, "x", 0, X1)], []),  # all are wrong alike
        ([held(0, "ab", 0), held(1, "cb", 0, X2 * 2), held(0, "ab", 1), held(1, "ac", 1, AGREES + X1)],
         [(1, (1,), (0,), 1, True), (0, (0, 1), (0, 1), 1, False)]),  # wrong ones first
        ([held(0, "a", 0), held(1, "b", 0), held(0, "a", None), held(1, "b", None)],
         [(None, (0, 1), (0, 1), 1, False)]),
        ([held(0, "a", 2), held(1, "b", 2), held(2, "a", 2), held(0, "a", 1), held(1, "b", 1)],
         [(1, (0, 1), (0, 1), 1, False), (2, (1,), (0, 2), 1, False)]),
    ],
)  # fmt: skip
def test_groups_that_differ(joints, found):
    assert summary(*joints) == found


@pytest.mark.parametrize(
    "kind, what", [(WEIGHT, "weight"), (GRADIENT, "gradient"), (TOLD, "result"), (TOLD_FORWARD, "result")]
)
def test_the_name_of_what_differs(kind, what):
    (found,) = odd_ones([held(0, "ab", kinds=WEIGHT + kind), held(1, "ac", kinds=WEIGHT + kind)])
    assert (found.what, found.first) == (what, ("op1", "input:1"))
