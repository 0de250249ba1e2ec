"""Communication between crafted ranks, and one order of the operators of all ranks."""

import pytest

from npucmp.flow.collectives import Communications, groups_of, sends
from npucmp.flow.operators import OperatorPlace
from npucmp.model import Operator, RankGroup, TensorRef


def call(name, shape=(4,), peer=None, group=None, slot="input:1"):
    """An operator whose type is its name before the dot."""
    given = {} if peer is None else {slot: peer}
    given |= {} if group is None else {"input:9": RankGroup(group)}
    tensors = TensorRef("input:0", "float32", shape), TensorRef("output:0", "float32", (len(name),))
    return Operator(name, name.partition(".")[0], "", "", 0, tensors, arguments=given)


def communications(*ranks, numbers=None, **more):
    return Communications(ranks, list(range(len(ranks))) if numbers is None else numbers, **more)


def plain(places):
    """Places with what they are joined to, without those that are joined to none."""
    return {tuple(place): [tuple(one) for one in others] for place, others in places.items() if others}


def everyone(count, at=0):
    """Each rank with all others."""
    return {(rank, at): [(one, at) for one in range(count) if one != rank] for rank in range(count)}


REDUCE, GATHER = "all_reduce.0", "all_gather.0"


@pytest.mark.parametrize(
    "ranks, joint",
    [
        ([[call(REDUCE)]] * 3, everyone(3)),
        ([[None, call(REDUCE)]] * 2, everyone(2, at=1)),
        ([[call("relu.0"), call(REDUCE)]] * 2, everyone(2, at=1)),
        ([[call("relu.0")]] * 2, {}),
        ([[call(REDUCE)], [call("all_reduce.1")]], {}),
        ([[call(REDUCE)], [call(REDUCE, (5,))]], {}),  # of other sums
        ([[call(GATHER)], [call(GATHER, (5,))]], everyone(2)),
        ([[call(REDUCE, group=(0, 1))], [call(REDUCE, group=(1, 0))], [call(REDUCE, group=(2,))]], everyone(2)),
        ([[call(GATHER, group=(0, 1))], [call(GATHER, group=(0, 2))]], {}),
        ([[call(REDUCE)]], {}),
        ([[call("send.0")], [call("send.0")]], {}),
        (
            [[call(REDUCE), call(REDUCE)], [call(REDUCE)]],
            {(0, 0): [(1, 0)], (0, 1): [(1, 0)], (1, 0): [(0, 0), (0, 1)]},
        ),
    ],
)
def test_a_collective_joins_the_calls_of_one_name_and_group(ranks, joint):
    found = communications(*ranks)
    assert plain(found.joint) == joint and plain(found.senders) == joint


@pytest.mark.parametrize(
    "sources, numbers, sender",
    [
        ((1, 1, 1), None, 1),
        ((4, 4, 4), [4, 5, 6], 0),
        ((1, 1, 0), None, None),  # they name two sources
        ((1, 1, None), None, None),
        ((None, None, None), None, None),
    ],
)
def test_one_rank_sends_a_broadcast(sources, numbers, sender):
    found = communications(*([call("broadcast.0", peer=one)] for one in sources), numbers=numbers)
    assert plain(found.joint) == everyone(3)
    alone = {place: [(sender, 0)] for place in everyone(3) if place != (sender, 0)}
    assert plain(found.senders) == (everyone(3) if sender is None else alone)


SEND, RECEIVE = "send.0", "recv.0"


@pytest.mark.parametrize(
    "ranks, numbers, senders",
    [
        ([[call(SEND, peer=1)], [call(RECEIVE, peer=0)]], None, {(1, 0): [(0, 0)]}),
        ([[call(RECEIVE, peer=7)], [call(SEND, peer=4)]], [4, 7], {(0, 0): [(1, 0)]}),
        ([[call("isend.0", peer=1)], [call("irecv.0", peer=0)]], None, {(1, 0): [(0, 0)]}),
        ([[call(SEND)], [call(RECEIVE)]], [None, None], {(1, 0): [(0, 0)]}),  # of two ranks
        ([[call(SEND, peer=9)], [call(RECEIVE, peer=0)]], None, {(1, 0): [(0, 0)]}),
        ([[call(RECEIVE)], [call(SEND)]], None, {(0, 0): [(1, 0)]}),
        ([[call(SEND)], [call(RECEIVE)], []], None, {}),
        ([[call(SEND, peer=9)], [call(RECEIVE, peer=0)], []], None, {}),
        ([[call(SEND, peer=1)], [call(RECEIVE, peer=2)], []], None, {}),
        ([[call(SEND, peer=2)], [call(SEND, peer=2)], [call(RECEIVE, peer=1), call(RECEIVE, peer=0)]], None,
         {(2, 0): [(1, 0)], (2, 1): [(0, 0)]}),
        ([[call(SEND, peer=1)] * 2, [call(RECEIVE, peer=0)] * 3], None, {(1, 0): [(0, 0)], (1, 1): [(0, 1)]}),
        ([[call(SEND, peer=1)] * 3, [call(RECEIVE, peer=0)]], None, {(1, 0): [(0, 0)]}),
        ([[call(SEND, peer=0)]], None, {}),
    ],
)  # fmt: skip
def test_the_first_receive_between_two_ranks_takes_the_first_send(ranks, numbers, senders):
    found = communications(*ranks, numbers=numbers)
    assert plain(found.senders) == senders and found.joint == {}


def clocks(*ranks, **more):
    """The clocks of each rank."""
    found = communications(*ranks, **more).clocks
    return [[found[rank, at] for at in range(len(sequence))] for rank, sequence in enumerate(ranks)]


A, B = call("all_reduce.a"), call("all_reduce.b")
TO, FROM = [call(SEND, peer=one) for one in (0, 1)], [call(RECEIVE, peer=one) for one in (0, 1)]


@pytest.mark.parametrize(
    "ranks, expected",
    [
        ([[None, None], [None]], [[1, 2], [1]]),
        ([[], [None], []], [[], [1], []]),
        ([], []),
        ([[A, None]], [[1, 2]]),
        ([[None, A], [A, None]], [[1, 2], [2, 3]]),
        ([[None, None, A], [A, B], [None, A, B]], [[1, 2, 3], [3, 4], [1, 3, 4]]),
        ([[None, TO[1], None], [FROM[0], None]], [[1, 2, 3], [3, 4]]),
        ([[FROM[1], None], [None, None, TO[0]]], [[4, 5], [1, 2, 3]]),
        ([[TO[1]], [None, None, FROM[0]]], [[1], [1, 2, 3]]),
        # all wait for each other: the rank with the smallest clock advances, the first of several
        ([[FROM[1], TO[1]], [FROM[0], TO[0]]], [[1, 2], [3, 4]]),
        ([[None, FROM[1], TO[1]], [FROM[0], TO[0]]], [[1, 3, 4], [1, 2]]),
        ([[A, B], [B, A]], [[1, 2], [2, 3]]),
    ],
)
def test_a_clock_is_one_more_than_those_of_all_operators_for_which_it_waits(ranks, expected):
    assert clocks(*ranks) == expected


def test_an_operator_waits_for_operators_of_other_ranks_that_wrote_what_it_reads():
    ranks = [None, None, None], [None, None], [None]
    at = OperatorPlace
    assert clocks(*ranks, read={at(1, 0): [at(0, 1)], at(2, 0): [at(1, 0), at(0, 2)]}) == [[1, 2, 3], [3, 4], [4]]
    assert clocks([None, A], [A], read={at(1, 0): [at(0, 1)]}) == [[1, 2], [2]]  # it is the same collective


def test_operators_of_one_clock_come_together():
    found = communications([None, TO[1], None], [FROM[0], None])
    assert [[tuple(one) for one in group] for group in found.in_order()] == [
        [(0, 0)],
        [(0, 1)],
        [(0, 2), (1, 0)],
        [(1, 1)],
    ]
    assert [*communications().in_order()] == []


@pytest.mark.parametrize(
    "name, is_send",
    [("send", True), ("isend", True), ("recv", False), ("irecv", False), ("all_reduce", False), ("all_gather", False)],
)
def test_a_send_goes_to_one_rank(name, is_send):
    assert sends(call(f"{name}.0")) is is_send


def test_the_groups_of_an_operator_are_sorted():
    two = call(REDUCE, peer=(1, 0), group=(3, 1, 2))
    assert groups_of(two) == ((1, 2, 3),)
    assert groups_of(call(REDUCE)) == ()
