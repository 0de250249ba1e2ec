"""How errors cross ranks: two or three ranks by hand, in every framework's spelling of what they tell each other."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npucmp
from npucmp.flow.collectives import Communications
from npucmp.flow.operators import OperatorPlace
from npucmp.model import Operator, RankGroup, TensorRef
from npucmp.model.roles import is_buffer
from tests.synthetic import write_run

random = np.random.default_rng(5)


def rand(*shape):
    return random.standard_normal(shape).astype(np.float32)


X, W1, W2, W3 = (rand(12, 12) for _ in range(4))


def linear(number, x, w, factor=1.0):
    y = (x.astype(np.float64) @ w * factor).astype(np.float32)
    return {f"Functional.linear.{number}.forward": {"in": [x, w], "out": [y]}}, y


def written(folder, ranks, step=0):
    for number, operators in enumerate(ranks):
        write_run(folder, operators, step, number)
    return folder


def told(tmp_path, make, **fault):
    """(rank, operator, cause) of all that is not PROPAGATED, by place."""
    paths = written(tmp_path / "target", make(**fault)), written(tmp_path / "golden", make())
    report = npucmp.compare(*paths)
    found = [(one.rank, root) for one in report.comparisons for root in one.roots]
    found.sort(key=lambda one: one[1].place)
    assert [root.place for _, root in found] == list(range(1, len(found) + 1))
    return [
        (rank, root.pair.operator.name, root.cause.value) for rank, root in found if root.cause.value != "PROPAGATED"
    ]


def root_of(tmp_path, rank, name):
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    return next(root for one in report.comparisons if one.rank == rank for root in one.roots
                if root.pair.operator.name == name)  # fmt: skip


SEND, RECV = "Distributed.send.0.forward", "Distributed.recv.0.forward"


def pipeline(first=1.0, second=1.0, received=1.0, back=1.0, recorded=True):
    """Rank 0 → rank 1 → rank 0, as msprobe 26.2 records it: rank 1 begins with the receive."""
    zero, a = linear(0, X, W1, first)
    more, b = linear(1, a, W2)
    arrived = (b * np.float32(received)).astype(np.float32)
    one, c = linear(0, arrived, W3, second)
    last, d = linear(1, c, W1)
    returned, _ = linear(2, (d * np.float32(back)).astype(np.float32), W2)
    calls = [
        {SEND: {"in": [b, 1], "out": [b]}, RECV: {"in": [None, 1], "out": [(d * np.float32(back)).astype(np.float32)]}},
        {RECV: {"in": [None, 0], "out": [arrived]}},
        {SEND: {"in": [d, 0], "out": [d]}},
    ]
    calls = calls if recorded else [{}, {}, {}]
    return [{**zero, **more, **calls[0], **returned}, {**calls[1], **one, **last, **calls[2]}]


@pytest.mark.parametrize("recorded", [True, False])
def test_what_was_sent_wrong_is_the_senders(tmp_path, recorded):
    wrong = {"recorded": recorded}

    def make(**fault):
        return pipeline(**{**wrong, **fault})

    assert told(tmp_path / "a", make, first=1.01) == [(0, "Functional.linear.0.forward", "BORN")]
    assert told(tmp_path / "b", make, second=1.01) == [(1, "Functional.linear.0.forward", "BORN")]


def test_a_receive_that_damages_what_was_sent_bears_the_error(tmp_path):
    assert told(tmp_path / "a", pipeline, received=1.01) == [(1, RECV, "BORN")]
    assert told(tmp_path / "b", pipeline, back=1.01) == [(0, RECV, "BORN")]
    assert "inputs agree (bit for bit)" in root_of(tmp_path / "b", 0, RECV).because


def test_the_evidence_names_the_rank(tmp_path):
    told(tmp_path, pipeline, first=1.01)
    root = root_of(tmp_path, 1, RECV)
    assert (root.cause.value, root.rule) == ("PROPAGATED", "collective")
    assert root.because.startswith(f"received from rank 0, where {SEND} input:0 differs")


def test_the_order_of_places_follows_what_waits_for_what(tmp_path):
    """Both ranks bear an error of their own; that of rank 1 has the smaller number there, and comes second."""

    def make(wrong=1.0):
        first, a = linear(0, X, W1)
        second, b = linear(1, a, W2)
        third, c = linear(2, b, W3, wrong)
        return [
            {**first, **second, **third, SEND: {"in": [c, 1], "out": [c]}},
            {RECV: {"in": [None, 0], "out": [c]}, **linear(0, X, W2, wrong)[0]},
        ]

    assert told(tmp_path, make, wrong=1.01) == [
        (0, "Functional.linear.2.forward", "BORN"),
        (1, "Functional.linear.0.forward", "BORN"),
    ]


def test_rounding_that_arrives_is_no_error_of_the_receive(tmp_path):
    """Rank 0 works in bfloat16, rank 1 begins with a receive in float32."""

    def make(noise=0.0):
        b = (X * (1 + noise * np.sign(X * W1))).astype(np.float32)
        half = {"Functional.linear.0.forward": {"in": [X.astype(np.float16), W1], "out": [b]}}
        out = {"Functional.linear.0.forward": {"in": [b, W3], "out": [(b.astype(np.float64) @ W3).astype(np.float32)]}}
        return [{**half, SEND: {"in": [b, 1], "out": [b]}}, {RECV: {"in": [None, 0], "out": [b]}, **out}]

    assert told(tmp_path, make, noise=3e-4) == []


def collective(name, wrong=0.0, damaged=1.0, buffer=None, gathers=False):
    """Two ranks: each has a product of its own, then both have their sum, or one beside the other."""
    parts = [linear(0, X * np.float32(rank + 1), W1, 1 + wrong * rank) for rank in (0, 1)]
    parts[0] = (parts[0][0], parts[0][1])
    both = np.concatenate([y for _, y in parts]) if gathers else parts[0][1] + parts[1][1]
    out = (both * np.float32(damaged)).astype(np.float32)
    before = [] if buffer is None else [np.full_like(out, buffer)]
    return [{**operators, name: {"in": [*before, y], "out": [out]}} for operators, y in parts]


SUMS = ["Distributed.all_reduce.0.forward", "Primitive.HcomAllReduce.0.forward", "Primitive.AllReduce.0.forward"]
GATHERS = ["Distributed.all_gather.0.forward", "Distributed.all_gather_into_tensor.0.forward"]


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_ranks_hands_on_what_another_rank_put_in(tmp_path, name):
    assert told(tmp_path, lambda **fault: collective(name, **fault), wrong=0.01) == [
        (1, "Functional.linear.0.forward", "BORN")
    ]
    assert root_of(tmp_path, 0, name).because.startswith(f"received from rank 1, where {name} input:0 differs")


@pytest.mark.parametrize("name", SUMS)
def test_of_inputs_alone_the_first_reader_of_a_sum_names_the_rank_that_put_the_error_in(tmp_path, name):
    """The outputs of the sum were not recorded: its first reader is no root, and neither is any other on that rank."""

    def make(**fault):
        ranks = [{**one, **linear(1, one[name]["out"][0], W2)[0]} for one in collective(name, **fault)]
        ranks = [{**one, **linear(2, one["Functional.linear.1.forward"]["out"][0], W3)[0]} for one in ranks]
        return [{call: {"in": record["in"], "out": []} for call, record in one.items()} for one in ranks]

    assert told(tmp_path, make, wrong=0.25) == [(1, name, "GAP")]
    passed = root_of(tmp_path, 0, "Functional.linear.1.forward")
    assert passed.because.startswith(f"received from rank 1, where {name} input:0 differs; input:0: rel_l2")
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    (alone,) = [one.roots for one in report.comparisons if one.rank == 0]
    assert alone == (passed,)


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_ranks_that_is_wrong_by_itself_bears_the_error(tmp_path, name):
    found = told(tmp_path, lambda **fault: collective(name, **fault), damaged=1.01)
    assert found == [(0, name, "BORN"), (1, name, "BORN")]


def grouped(folder, ranks):
    """Records the group of the sum."""
    dump = json.loads((folder / "dump.json").read_text())
    dump["data"][SUMS[0]]["input_kwargs"] = {"group": {"type": "torch.ProcessGroup", "group_ranks": ranks}}
    (folder / "dump.json").write_text(json.dumps(dump))


@pytest.mark.parametrize(
    "make, fault, rank, name",
    [
        (lambda **fault: collective(SUMS[0], **fault), {"wrong": 0.01}, 0, SUMS[0]),
        (lambda **fault: collective(GATHERS[0], gathers=True, **fault), {"wrong": 0.01}, 0, GATHERS[0]),
        (pipeline, {"first": 1.01}, 1, RECV),
    ],
)
def test_what_other_ranks_put_in_is_not_known_of_one_rank_alone(tmp_path, make, fault, rank, name):
    """The fault is another rank's, which is not compared: nobody can tell that from a wrong collective."""
    for side, some in (("target", fault), ("golden", {})):
        written(tmp_path / side, make(**some))
    [one] = npucmp.compare(tmp_path / "target", tmp_path / "golden", rank=rank).comparisons
    first = min(one.roots, key=lambda root: root.place)
    assert (first.pair.operator.name, first.cause.value) == (name, "UNKNOWN")
    assert "tensors of other ranks were not compared: compare all ranks of the step" in first.because
    assert all(root.cause.value == "PROPAGATED" for root in one.roots if root is not first)


@pytest.mark.parametrize("ranks, cause", [(None, "BORN"), ("0-1", "UNKNOWN")])
def test_a_recorded_group_tells_whether_all_of_it_is_compared(tmp_path, ranks, cause):
    """Three ranks have a sum, which is wrong on each; of two of them alone nobody knows what the third put in."""
    parts = [X, X * np.float32(2), X * np.float32(3)]
    for side, factor in (("target", 1.01), ("golden", 1.0)):
        for rank, part in enumerate(parts):
            write_run(tmp_path / side, {SUMS[0]: {"in": [part], "out": [sum(parts) * np.float32(factor)]}}, 0, rank)
            grouped(tmp_path / side / "step0" / f"rank{rank}", [0, 1, 2])
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", rank=ranks)
    assert {root.cause.value for one in report.comparisons for root in one.roots} == {cause}


def test_a_group_of_one_rank_puts_in_nothing_else(tmp_path):
    for side, factor in (("target", 1.01), ("golden", 1.0)):
        write_run(tmp_path / side, {SUMS[0]: {"in": [X], "out": [X * np.float32(factor)]}}, 0, 0)
        grouped(tmp_path / side / "step0" / "rank0", [0])
    [one] = npucmp.compare(tmp_path / "target", tmp_path / "golden").comparisons
    assert [root.cause.value for root in one.roots] == ["BORN"]


def test_rounding_of_what_two_ranks_put_in_may_be_all_that_is_left_of_their_sum(tmp_path):
    def make(noise=0.0):
        parts = [X, (W1 * np.float32(1e-3) - X) * np.float32(1 + noise)]
        total = (parts[0].astype(np.float64) + parts[1]).astype(np.float32)
        return [{SUMS[0]: {"in": [part], "out": [total]}} for part in parts]

    assert told(tmp_path, make, noise=2e-7) == []


@pytest.mark.parametrize("name", GATHERS)
def test_what_lay_in_the_memory_that_a_gather_writes_to_is_nobodys_fault(tmp_path, name):
    def make(buffer=1.0, wrong=0.0):
        return collective(name, wrong, buffer=buffer, gathers=True)

    assert told(tmp_path / "clean", make, buffer=7.0) == []
    assert told(tmp_path / "wrong", make, buffer=7.0, wrong=0.01) == [(1, "Functional.linear.0.forward", "BORN")]


def test_a_receive_of_a_device_is_told_what_was_sent(tmp_path):
    """GE's operators name no peer; of two ranks it can only be the other one."""

    def make(wrong=1.0):
        first, b = linear(0, X, W1, wrong)
        second, _ = linear(0, b, W3)
        return [
            {**first, "Primitive.HcomSend.0.forward": {"in": [b], "out": []}},
            {"Primitive.HcomReceive.0.forward": {"in": [], "out": [b]}, **second},
        ]

    assert told(tmp_path, make, wrong=1.01) == [(0, "Functional.linear.0.forward", "BORN")]


def test_repeated_runs_begin_to_differ_where_the_sender_does(tmp_path):
    paths = [written(tmp_path / f"{i}", pipeline(first=factor)) for i, factor in enumerate((1.0, 1.01))]
    report = npucmp.rerun_diff(paths)
    first = next((one.rank, one.pair.operator.name, one.cause.value) for one in report.reruns)
    assert first == (0, "Functional.linear.0.forward", "BORN")
    assert next(one for one in report.reruns if one.pair.operator.name == RECV).cause.value == "PROPAGATED"


def test_an_overflow_that_was_received_is_the_senders(tmp_path):
    lost = X.copy()
    lost[0, 0] = np.nan
    zero = {"Torch.exp.0.forward": {"in": [X], "out": [X]}, "Torch.div.0.forward": {"in": [X], "out": [lost]}}
    ranks = [{**zero, SEND: {"in": [lost, 1], "out": [lost]}}, {RECV: {"in": [None, 0], "out": [lost]}}]
    report = npucmp.overflow(written(tmp_path, ranks))
    assert next((root.place, root.pair.operator.name, root.cause.value) for root in report.roots) == (
        1, "Torch.div.0.forward", "BORN",
    )  # fmt: skip
    assert all(event.origin == "propagated" for event in report.scans[1].events)


# Who tells whom, without any values


def op(name, kind, order, peer=None, reads=((4,),), writes=((4,),)):
    tensors = [TensorRef(f"input:{i}", "float32", shape) for i, shape in enumerate(reads)]
    tensors += [TensorRef(f"output:{i}", "float32", shape) for i, shape in enumerate(writes)]
    return Operator(name, kind, kind, "", order, tuple(tensors), arguments={} if peer is None else {"input:1": peer})


def run(*calls):
    return [op(f"{kind}.{order}", kind, order, *peer) for order, (kind, *peer) in enumerate(calls)]


def test_sends_and_receives_meet_by_peer_and_count():
    zero = run(("send", 2), ("send", 1), ("send", 2))
    one = run(("recv", 0), ("send", 2))
    two = run(("recv", 0), ("recv", 1), ("recv", 0))
    told = Communications([zero, one, two], [0, 1, 2])
    assert told.senders == {
        OperatorPlace(1, 0): [OperatorPlace(0, 1)], OperatorPlace(2, 0): [OperatorPlace(0, 0)], OperatorPlace(2, 1):
        [OperatorPlace(1, 1)], OperatorPlace(2, 2): [OperatorPlace(0, 2)],
    }  # fmt: skip
    clocks = told.clocks
    assert all(clocks[send] < clocks[receive] for receive, (send,) in told.senders.items())


def test_of_three_ranks_a_peer_that_is_not_told_is_not_guessed():
    assert Communications([run(("send",)), run(("recv",)), run(("recv",))], [0, 1, 2]).senders == {}
    assert Communications([run(("send",)), run(("recv",))], [None, None]).senders == {
        OperatorPlace(1, 0): [OperatorPlace(0, 0)]
    }


def test_all_ranks_of_a_collective_stand_at_one_clock():
    sequences = [run(("add",), ("add",), ("all_reduce",)), run(("add",), ("mul",), ("all_reduce",), ("add",))]
    sequences[0].insert(0, op("more", "exp", 9))
    told = Communications(sequences, [0, 1])
    assert told.clocks[OperatorPlace(0, 3)] == told.clocks[OperatorPlace(1, 2)] == 4
    assert told.clocks[OperatorPlace(1, 3)] == 5


def test_calls_that_cannot_be_matched_end_all_the_same():
    """Each waits for the other: the dumps are of different runs, or calls were lost."""
    crossed = [run(("recv", 1), ("send", 1)), run(("recv", 0), ("send", 0))]
    assert len(Communications(crossed, [0, 1]).clocks) == 4
    swapped = [
        [op("a", "all_reduce", 0), op("b", "all_reduce", 1)],
        [op("b", "all_reduce", 0), op("a", "all_reduce", 1)],
    ]
    assert len(Communications(swapped, [0, 1]).clocks) == 4


def plain_clocks(told, sequences):
    """By the rules as they are told: of all ranks that can go on, the one that is least far does; if none can, any."""
    at, now, clocks = [0] * len(sequences), [0] * len(sequences), {}

    def before(place):
        return [one for one in told.senders.get(place, ()) if one not in told.joint.get(place, ())]

    def is_ready(rank):
        place = OperatorPlace(rank, at[rank])
        passed = all(at[one.rank] > one.at for one in before(place))
        return passed and all(at[one.rank] >= one.at for one in told.joint.get(place, ()))

    while waiting := [rank for rank, sequence in enumerate(sequences) if at[rank] < len(sequence)]:
        _, rank = min((now[rank], rank) for rank in [*filter(is_ready, waiting)] or waiting)
        place = OperatorPlace(rank, at[rank])
        together = [one for one in (place, *told.joint.get(place, ())) if at[one.rank] == one.at]
        clock = 1 + max([now[one.rank] for one in together] + [clocks[one] for one in before(place) if one in clocks])
        for one in together:
            clocks[one], now[one.rank], at[one.rank] = clock, clock, one.at + 1
    return clocks


CALLS = st.one_of(
    st.sampled_from(["add", "all_reduce", "all_gather"]).map(lambda kind: (kind, f"{kind}.0")),
    st.tuples(st.just("all_reduce"), st.sampled_from(["all_reduce.1", "all_reduce.2"])),
    st.tuples(st.sampled_from(["send", "recv"]), st.just("p2p"), st.integers(0, 4)),
)


@given(st.lists(st.lists(CALLS, max_size=8), min_size=1, max_size=5))
@settings(max_examples=80, deadline=None)
def test_clocks_follow_the_rules_whatever_waits_for_whom(ranks):
    """Also where calls were lost and all wait for each other."""
    sequences = [[op(name, kind, at, *peer) for at, (kind, name, *peer) in enumerate(calls)] for calls in ranks]
    told = Communications(sequences, [*range(len(sequences))])
    assert told.clocks == plain_clocks(told, sequences)


def test_a_broadcast_comes_from_one_rank():
    told = Communications([run(("broadcast", 1)) for _ in range(3)], [0, 1, 2])
    assert told.senders[OperatorPlace(0, 0)] == [OperatorPlace(1, 0)] and told.senders[OperatorPlace(1, 0)] == []
    (one,) = run(("broadcast", 1))
    assert [is_buffer(one, one.tensors[0], rank) for rank in (0, 1)] == [True, False]


def test_a_sum_of_other_shapes_is_of_another_group():
    told = Communications(
        [[op("s", "all_reduce", 0, None, ((4,),))], [op("s", "all_reduce", 0, None, ((8,),))]], [0, 1]
    )
    assert told.senders == {OperatorPlace(0, 0): [], OperatorPlace(1, 0): []}


def test_groups_side_by_side_are_told_apart():
    """Where a dump records them: calls of one name and shape in two groups tell each other nothing."""
    tensors = (TensorRef("input:0", "float32", (3,)), TensorRef("output:0", "float32", (3,)))

    def calls(*ranks):
        more = {"input:group": RankGroup(ranks)} if ranks else {}
        return [Operator("Distributed.all_reduce.0.forward", "all_reduce", "", "forward", 0, tensors, arguments=more)]

    told = Communications([calls(0, 1), calls(1, 0), calls(2, 3), calls(2, 3)], [0, 1, 2, 3])
    assert told.senders == {OperatorPlace(at, 0): [OperatorPlace(at ^ 1, 0)] for at in range(4)}
    assert len(Communications([calls()] * 4, [0, 1, 2, 3]).senders[OperatorPlace(0, 0)]) == 3


def halves(name, noise=0.0, quarter=1.0, rounded=False):
    """Two ranks in float16: a sum over both. On rank 1 a quarter of it may be scaled, or every element be rounded to a
    neighbour; noise is added to what both ranks put in."""
    parts = [linear(0, X * np.float32(rank + 1), W1)[1] for rank in (0, 1)]
    parts = [
        (x + noise * np.abs(x).mean() * np.cos(np.arange(x.size)).reshape(x.shape)).astype(np.float16) for x in parts
    ]
    out = (parts[0].astype(np.float32) + parts[1].astype(np.float32)).astype(np.float16)
    other = out.astype(np.float32)
    other[: len(out) // 4] *= np.float32(quarter)
    other = other.astype(np.float16)
    if rounded:
        other = np.where(np.arange(out.size).reshape(out.shape) % 2, np.nextafter(out, np.float16(9)), out)
    return [{name: {"in": [part], "out": [x]}} for part, x in zip(parts, (out, other))]


@pytest.mark.parametrize("name", [*SUMS, "Distributed.broadcast.0.forward"])
def test_a_collective_that_leaves_other_tensors_on_its_ranks_bears_the_error(tmp_path, name):
    fault = {"noise": 1e-3, "quarter": 1.006}  # rel_l2 is 8 times the noise at most, and below the limit of float16
    assert told(tmp_path, lambda **fault: halves(name, **fault), **fault) == [(1, name, "BORN")]
    assert "differs from rank 0's" in root_of(tmp_path, 1, name).because


def test_a_collective_whose_ranks_differ_in_the_golden_too_or_by_rounding_is_silent(tmp_path):
    both = halves(SUMS[0], quarter=1.006)
    assert told(tmp_path / "both", lambda: both) == []
    assert told(tmp_path / "rounded", lambda **fault: halves(SUMS[0], **fault), noise=1e-3, rounded=True) == []
