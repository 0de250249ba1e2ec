"""Tensors that a rank reads of others, and outputs of collectives that ranks should share."""

import math

import numpy as np
import pytest

from npucmp.flow.contents import content_of
from npucmp.localise.remote_inputs import (
    CollectiveOutput,
    RankTensors,
    RemoteTensor,
    RemoteView,
    add_remote_inputs,
    contents,
    explain_remote,
    golden_of,
    inequalities,
    mark_missing_ranks,
    outputs_of,
    own_error,
    read_elsewhere,
    snapshot,
    tensor_of,
    without_buffers,
)
from npucmp.localise.search import RootSearch
from npucmp.model import Cause, Root, Side, Verdict
from tests.localise.rank_steps import comparison_of, node_of, numbers, off

X, Y, Z, W = (numbers(4, 4, seed=seed) for seed in range(4))
LARGE = 0.01
ONES = np.ones((4, 4))


def walk_of(*calls, rank=0):
    return RootSearch(comparison_of(rank, *calls).findings, rank=rank)


def test_the_golden_names_the_operator():
    node = node_of(0, "all_reduce", [X], Y)
    other = node.pair.golden_op._replace(name="other")
    node.pair = node.pair._replace(golden_op=other)
    assert golden_of(node) is other
    node.pair = node.pair._replace(golden_op=None)
    assert golden_of(node) is node.operator


def test_tensors_are_numbered_inputs_first():
    node = node_of(0, "add", [X, Y], Z)
    assert [tensor_of(node, at) for at in range(3)] == [*node.inputs, *node.outputs]


def test_the_largest_error_of_the_inputs():
    assert own_error(node_of(0, "add", [off(X, 0.25), off(Y, 0.5)], off(Z, 2.0))) == pytest.approx(0.5)
    assert own_error(node_of(0, "add", [X, Y], off(Z, 2.0))) == 0.0
    assert own_error(node_of(0, "recv", [], off(Z, 2.0))) == 0.0


def test_a_tensor_as_its_own_rank_sees_it():
    walk = walk_of(("linear", [X, W], off(Y, LARGE)), ("exp", [off(Y, LARGE)], off(Z, LARGE)))
    made, last = walk.nodes[0].outputs[0], walk.nodes[1].outputs[0]
    assert snapshot(walk, 3, made) == RemoteView(3, made, False)  # not visited yet
    for node in walk.nodes:
        walk.visit(node)
    read = walk.nodes[1].inputs[0]
    assert [snapshot(walk, 3, one).tainted for one in (made, read, last)] == [True] * 3
    assert not snapshot(walk, 3, walk.nodes[0].inputs[0]).tainted
    agreed = made._replace(verdict=Verdict.MATCH)
    walk.revised[made.row] = agreed
    assert snapshot(walk, None, made) == RemoteView(None, agreed, False)


def remote(rank, values, tainted, kind="send"):
    (finding,) = node_of(0, kind, [values], values).inputs
    return RemoteView(rank, finding._replace(row=90 + (rank or 0)), tainted)


def test_a_tensor_of_another_rank_is_the_source_of_its_readers():
    wrong = remote(1, off(Y, LARGE), True)
    for tainted in (True, False):
        walk = walk_of(("exp", [off(Y, LARGE)], off(Z, LARGE)))
        found = add_remote_inputs(walk, walk.nodes[0], [wrong._replace(tainted=tainted)], [])
        assert (found is not None) is tainted
        assert walk.sources.of(walk.nodes[0].inputs[0]).tainted is tainted
        assert not walk.nodes[0].has_remote_inputs and not walk.nodes[0].error_from_other_rank


def test_a_tensor_that_a_rank_held_before_has_its_own_source():
    walk = walk_of(("exp", [X], Y), ("exp", [Y], Z))
    assert add_remote_inputs(walk, walk.nodes[1], [remote(1, Y, True)], []) is None
    assert not walk.sources.of(walk.nodes[1].inputs[0]).tainted


def test_the_contribution_with_the_largest_error_is_the_one_that_counts():
    walk = walk_of(("all_reduce", [X], Y))
    node = walk.nodes[0]
    some = [
        remote(1, off(Z, LARGE), True),
        remote(2, off(W, 2 * LARGE), True),
        remote(3, off(X, 3 * LARGE), False),
    ]
    assert add_remote_inputs(walk, node, [], some) is some[1]
    assert node.extra_inputs == [one.finding for one in some]
    assert node.has_remote_inputs and node.error_from_other_rank
    clean = walk_of(("all_reduce", [X], Y))
    assert add_remote_inputs(clean, clean.nodes[0], [], [some[2]]) is None
    assert clean.nodes[0].has_remote_inputs and not clean.nodes[0].error_from_other_rank
    assert add_remote_inputs(clean, clean.nodes[0], [], []) is None


@pytest.mark.parametrize(
    "kind, group, ranks, missing",
    [
        ("all_reduce", (0, 1, 2), [1, 2], False),
        ("all_reduce", (0, 1, 2), [1], True),
        ("all_reduce", (0, 1, 2), [1, 1], True),  # two tensors of one rank
        ("all_reduce", (0, 1), [1], False),
        ("all_reduce", None, [1], False),
        ("all_reduce", (0, 1, 2), [None], False),
        ("all_reduce", (0, 1, 2), [], False),
        ("broadcast", (0, 1, 2), [1], False),
        ("recv", (0, 1, 2), [1], False),
    ],
)
def test_a_recorded_group_has_ranks_that_are_not_compared(kind, group, ranks, missing):
    walk = walk_of((kind, [X], Y, {"group": group}))
    node = walk.nodes[0]
    add_remote_inputs(walk, node, [], [remote(rank, Z + at, False) for at, rank in enumerate(ranks)])
    assert node.remote_inputs_missing is missing
    node.remote_inputs_missing = True
    add_remote_inputs(walk, node, [], [])
    assert node.remote_inputs_missing


def test_a_root_that_propagates_names_the_rank_and_the_tensor():
    view = remote(4, off(Y, LARGE), True)
    pair = node_of(0, "exp", [X], Y).pair
    first = explain_remote(Root(1, pair, Cause.BORN, "output:0", "rel_l2", 0.1, 1e-3, 0.0, 0.1, ()), view)
    assert first.evidence == () and first.rule == ""
    root = Root(1, pair, Cause.PROPAGATED, "output:0", "rel_l2", 0.1, 1e-3, 0.0, 0.1, ("own",))
    found = explain_remote(root, view)
    assert found.rule == "collective" and found.evidence[1:] == ("own",)
    assert found.evidence[0].sentence() == "received from rank 4, where send.0 input:0 differs"
    zero = explain_remote(root, view._replace(rank=0)).evidence[0].sentence()
    assert zero.startswith("received from rank 0,")
    unknown = explain_remote(root, view._replace(rank=None)).evidence[0].sentence()
    assert unknown == "received from another rank, where send.0 input:0 differs"


@pytest.mark.parametrize(
    "calls, wanted, made",
    [
        ([("exp", [X], Y)], [(X, 0, 0)], [(Y, 0, 1)]),
        ([("add", [X, W], Y), ("exp", [Y], Z)], [(X, 0, 0), (W, 0, 1)], [(Y, 0, 2), (Z, 1, 1)]),
        ([("exp", [X], Y), ("exp", [X], Z)], [(X, 0, 0)], [(Y, 0, 1), (Z, 1, 1)]),  # read before
        ([("exp", [X], X)], [(X, 0, 0)], []),
        ([("all_reduce", [X], Y)], [(X, 0, 0)], []),  # outputs of a collective belong to all
        ([("exp", [X], Y), ("send", [Y], Y)], [(X, 0, 0)], [(Y, 0, 1), (Y, 1, 0)]),  # what it sends
        ([("exp", [X], Y), ("recv", [Y], Y)], [(X, 0, 0)], [(Y, 0, 1)]),
        ([("exp", [ONES], Y)], [], [(Y, 0, 1)]),  # a constant is no tensor of another rank
    ],
)
def test_the_tensors_that_ranks_may_share(calls, wanted, made):
    walk = walk_of(*calls)

    def listed(some):
        known = [content_of(node_of(0, "exp", [one], W).inputs[0]) for one, _, _ in some]
        return [RemoteTensor(one, at, number) for one, (_, at, number) in zip(known, some)]

    assert contents(walk.nodes) == RankTensors(listed(wanted), listed(made))


@pytest.mark.parametrize(
    "kind, peer, wrote, rank, left",
    [
        ("recv", None, Y, 0, 0),
        ("recv", None, Y[:2], 0, 1),  # of another shape
        ("all_gather", None, Y, 0, 0),
        ("broadcast", 1, Y, 0, 0),
        ("broadcast", 1, Y, 1, 1),  # its source reads it
        ("all_reduce", None, Y, 0, 1),
        ("exp", None, Y, 0, 1),
    ],
)
def test_the_memory_of_a_receive_before_the_data_arrive(kind, peer, wrote, rank, left):
    walk = walk_of((kind, [off(X, LARGE)], wrote, {"peer": peer}), rank=rank)
    before = walk.nodes[0].inputs[0]
    without_buffers(walk, rank)
    assert len(walk.nodes[0].inputs) == left
    seen = walk.revised.get(before.row, before).verdict
    assert seen is (Verdict.DIVERGED if left else Verdict.UNKNOWN)


def test_memory_that_one_run_alone_recorded_is_no_input_either():
    for side in ("target", "golden"):
        walk = walk_of(("recv", [X], Y))
        one = walk.nodes[0].inputs[0]
        alone = one.measurement._replace(pair=one.pair._replace(**{side: None}))
        walk.nodes[0].inputs[0] = one._replace(measurement=alone)
        without_buffers(walk, 0)
        assert walk.nodes[0].inputs == []


@pytest.mark.parametrize(
    "kind, group, missing",
    [
        ("all_reduce", None, True),
        ("recv", None, True),
        ("send", None, False),
        ("all_reduce", (0,), False),
        ("all_reduce", (0, 1), True),
        ("exp", None, False),
    ],
)
def test_a_rank_alone_lacks_the_inputs_of_its_collectives(kind, group, missing):
    walk = walk_of((kind, [X], Y, {"group": group}), ("exp", [Y], Z))
    mark_missing_ranks(walk)
    assert [node.remote_inputs_missing for node in walk.nodes] == [missing, False]


A, B, C = (RemoteTensor(content, at, number) for content, at, number in ((7, 0, 1), (8, 3, 2), (9, 5, 0)))
TENSORS = {
    "nothing": ([([], []), ([], [])], {}),
    "one": ([([], [A]), ([A._replace(at=4)], [])], {(1, 4): [(0, 0, 1)]}),
    "its own": ([([A], [A]), ([], [])], {}),
    "other contents": ([([A], []), ([], [B])], {}),
    "two makers": ([([], [A]), ([], [A._replace(at=2)]), ([A], [])], {(2, 0): [(0, 0, 1), (1, 2, 1)]}),
    "the last of a rank": ([([], [A, A._replace(at=6)]), ([A], [])], {(1, 0): [(0, 6, 1)]}),
    "two tensors": ([([], [A, B]), ([A, B._replace(at=0)], [])], {(1, 0): [(0, 0, 1), (0, 3, 2)]}),
    "two readers": ([([], [A]), ([A, A._replace(at=9)], []), ([A], [])],
                    {(1, 0): [(0, 0, 1)], (1, 9): [(0, 0, 1)], (2, 0): [(0, 0, 1)]}),
    "both ways": ([([A], [C]), ([C], [A])], {(0, 0): [(1, 0, 1)], (1, 5): [(0, 5, 0)]}),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_the_places_that_an_operator_reads_on_other_ranks(name):
    ranks, found = TENSORS[name]
    assert dict(read_elsewhere([RankTensors(*one) for one in ranks])) == found


@pytest.mark.parametrize(
    "kind, wrote, found",
    [
        ("all_reduce", Y, 1),
        ("broadcast", Y, 1),
        ("recv", Y, 0),
        ("irecv", Y, 0),
        ("exp", Y, 0),
        ("all_reduce", ONES, 0),
    ],
)
def test_outputs_that_ranks_may_share(kind, wrote, found):
    node = node_of(0, kind, [X], off(wrote, LARGE * found))
    outputs = outputs_of(node)
    assert len(outputs) == found
    for one in outputs:
        assert (one.slot, one.content) == ("output:0", content_of(node.outputs[0]))
        assert one.error == pytest.approx(LARGE) and one.tolerance == 2 * 2.0**-24
        assert one.target == node.outputs[0].measurement.moments.target
    node.outputs[0] = node.outputs[0]._replace(measurement=node.outputs[0].measurement._replace(moments=None))
    assert outputs_of(node) == []


def test_an_output_that_agrees_has_no_error():
    assert [one.error for one in outputs_of(node_of(0, "all_reduce", [X], Y))] == [0.0]


SIDE = Side(minimum=-2.0, maximum=4.0, total=8.0, squares=16.0)


def output(target=SIDE, error=0.0, content=1, slot="output:0", tolerance=0.125):
    return CollectiveOutput(slot, content, target, error, tolerance)


@pytest.mark.parametrize(
    "more, size",
    [
        ({}, 0.0),
        ({"squares": 4.0}, 0.5),
        ({"squares": 64.0}, 0.5),
        ({"minimum": -1.0}, 0.5),
        ({"minimum": 0.0}, 1.0),
        ({"minimum": 2.0}, 2.0),  # of the other sign
        ({"maximum": 8.0}, 0.5),
        ({"total": 10.0}, 0.5),  # of a norm of 4
        ({"total": 5.0}, 0.75),
        ({"nan": 1}, math.inf),
        ({"posinf": 1}, math.inf),
        ({"neginf": 1}, math.inf),
        ({"minimum": -1.0, "maximum": 16.0}, 0.75),  # the largest of them
        ({"squares": 0.0, "total": 8.0}, 1.0),
    ],
)
def test_the_difference_of_two_tensors_by_their_statistics(more, size):
    """Rank 5 has the larger error."""
    ranks = [(3, [output()]), (5, [output(SIDE._replace(**more), 0.5)])]
    found = [{slot: one.size for slot, one in some.items()} for some in inequalities(ranks)]
    assert found == [{}, {"output:0": size} if size else {}]


def test_tensors_of_zeros_are_equal():
    zeros = Side(minimum=0.0, maximum=0.0, total=0.0, squares=0.0)
    assert inequalities([(0, [output(zeros)]), (1, [output(zeros, 0.5)])]) == [{}, {}]


def apart(*sizes):
    """Statistics whose norms are so large."""
    return [SIDE._replace(squares=size * size, total=0.0) for size in sizes]


@pytest.mark.parametrize(
    "norms, errors, odd",
    [
        ((4, 4), (0, 1), []),
        ((4, 8), (0, 1), [1]),
        ((4, 8), (1, 0), [0]),  # the larger error of two
        ((4, 8), (1, 1), [1]),  # of equal errors, the later rank
        ((4, 3.5), (0, 1), []),  # the tolerance
        ((4, 3.4), (0, 1), [1]),
        ((4, 8, 4), (1, 0, 0), [1]),  # it differs from most
        ((4, 8, 16), (0, 0, 0), [0, 1, 2]),
        ((4, 4, 8, 8), (0, 0, 0, 0), [0, 1, 2, 3]),  # from two of three
        ((4, 4, 4, 8), (0, 0, 0, 0), [3]),
        ((4, 4, 4, 8, 8), (0, 0, 0, 0, 0), [3, 4]),  # half of the others are no majority
        ((4,), (1,), []),
    ],
)
def test_the_rank_that_holds_another_tensor(norms, errors, odd):
    ranks = [(at, [output(side, error)]) for at, (side, error) in enumerate(zip(apart(*norms), errors))]
    found = inequalities(ranks)
    assert [at for at, some in enumerate(found) if some] == odd
    for at in odd:
        one, number = (
            found[at]["output:0"],
            next(at for at in range(len(norms)) if norms[at] != norms[odd[0]]),
        )
        assert one.tolerance == 0.125
        if len(odd) == 1:
            assert one.size == 1 - min(norms[at], norms[number]) / max(norms[at], norms[number])
            assert f"rank {number}'s by {one.size:.2e}" in one.words


@pytest.mark.parametrize("ranks, odd", [((0, 1), 1), ((1, 0), 0), ((0, 0), 1)])
def test_of_two_ranks_with_equal_errors_the_later_one_is_named(ranks, odd):
    """Ranks that the dump does not number all have the number 0."""
    found = inequalities([(rank, [output(side)]) for rank, side in zip(ranks, apart(4, 8))])
    assert [at for at, some in enumerate(found) if some] == [odd]


def test_only_one_tensor_of_the_golden_is_compared_with_itself():
    one, other = apart(4, 8)
    assert inequalities([(0, [output(one)]), (1, [output(other, 1, content=2)])]) == [{}, {}]
    assert inequalities([(0, [output(one)]), (1, [output(other, 1, slot="output:1")])]) == [{}, {}]
    twice = inequalities(
        [
            (0, [output(one), output(one, slot="output:1")]),
            (1, [output(one), output(other, 1, slot="output:1")]),
        ]
    )
    assert [[*some] for some in twice] == [[], ["output:1"]]
    assert inequalities([(0, [output(one), output(other, 1)]), (1, [])]) == [{}, {}]
    assert inequalities([]) == []
