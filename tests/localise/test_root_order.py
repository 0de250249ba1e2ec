"""How errors cross ranks: two or three ranks by hand, in every framework's spelling of what they tell each other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import npucmp
from npucmp.flow.collectives import Communications
from npucmp.flow.operators import OperatorPlace
from npucmp.model import Operator, TensorRef
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


# Who tells whom, without any values


def op(name, kind, order, peer=None, reads=((4,),), writes=((4,),)):
    tensors = [TensorRef(f"input:{i}", "float32", shape) for i, shape in enumerate(reads)]
    tensors += [TensorRef(f"output:{i}", "float32", shape) for i, shape in enumerate(writes)]
    return Operator(name, kind, kind, "", order, tuple(tensors), arguments={} if peer is None else {"input:1": peer})


def run(*calls):
    return [op(f"{kind}.{order}", kind, order, *peer) for order, (kind, *peer) in enumerate(calls)]


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
def test_clocks_follow_the_rules_whatever_waits_for_whom(ranks):
    """Also where calls were lost and all wait for each other."""
    sequences = [[op(name, kind, at, *peer) for at, (kind, name, *peer) in enumerate(calls)] for calls in ranks]
    told = Communications(sequences, [*range(len(sequences))])
    clocks = {place: told.clock(*place) for place in plain_clocks(told, sequences)}
    assert clocks == plain_clocks(told, sequences)


def test_a_broadcast_comes_from_one_rank():
    told = Communications([run(("broadcast", 1)) for _ in range(3)], [0, 1, 2])
    assert told.senders[OperatorPlace(0, 0)] == [OperatorPlace(1, 0)] and told.senders[OperatorPlace(1, 0)] == []
    (one,) = run(("broadcast", 1))
    assert [is_buffer(one, one.tensors[0], rank) for rank in (0, 1)] == [True, False]
