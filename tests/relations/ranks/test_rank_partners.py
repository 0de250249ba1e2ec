"""Operators of ranks beside those of one golden run: by lane, stage, micro batch, and parameter."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.relations.layout_sizes import parse_layout
from npucmp.relations.ranks.rank_partners import RankPartners
from tests.align.rank_craft import numbers, rank_of
from tests.align.rank_networks import V, W, X, Y, batch, call, layer, shared


def partners_of(folder, ranks, golden, **more):
    runs = {at: rank_of(folder / f"{at}", calls, at) for at, calls in enumerate(ranks)}
    return RankPartners(runs, rank_of(folder / "golden", golden), **more)


def found(partners, of=None):
    """The names of partners by (rank, micro batch), for each golden operator that has one."""
    short = {name: {at: one.name.split(".", 1)[1] for at, one in some.items()} for name, some in partners.found.items()}
    return {name.split(".", 1)[1]: some for name, some in short.items() if some}


# Lanes and stages


def staged(sends=True):
    """The layer on two stages."""
    first, second, third, fourth = layer(W, V, Y)
    move = [("Distributed.send.0.forward", [second[2][0]], [], {"input:dst": 1})] if sends else []
    take = [("Distributed.recv.0.forward", [], [second[2][0]], {"input:src": 0})] if sends else []
    return [[first, second, *move], [*take, third, fourth]]


def test_stages_of_a_stated_layout(tmp_path):
    for sends, text, stages in ((False, "pp=2", [0, 1]), (False, "tp=2", [0, 0]), (True, "tp=2", [0, 1])):
        folder = tmp_path / f"{text} {sends}"
        partners = partners_of(folder, staged(sends), layer(W, V, Y), sizes=parse_layout(text))
        assert [*partners.stages.values()] == stages


# Micro batches


def micro(*rows):
    """Micro batches of these rows."""
    return [one for number, own in enumerate(rows) for one in batch(own, number)]


ALL, UPPER, LOWER = np.s_[:], np.s_[:2], np.s_[2:]
QUARTERS = [np.s_[at : at + 1] for at in range(4)]


@pytest.mark.parametrize(
    "ranks, golden, linear",
    [
        ([micro(UPPER, LOWER)], micro(ALL), [{(0, 0): 0, (0, 1): 1}]),
        ([micro(UPPER, LOWER)], micro(UPPER, LOWER), [{(0, 0): 0}, {(0, 0): 1}]),
        ([micro(UPPER), micro(LOWER)], micro(UPPER, LOWER), [{(0, 0): 0}, {(1, 0): 0}]),  # one of each rank
        ([micro(*QUARTERS[::2]), micro(*QUARTERS[1::2])], micro(*QUARTERS),
         [{(0, 0): 0}, {(1, 0): 0}, {(0, 0): 1}, {(1, 0): 1}]),
        ([micro(*QUARTERS[:2]), micro(*QUARTERS[:2])], micro(*QUARTERS),  # rank 1 reads the data of rank 0
         [{(0, 0): 0}, {(0, 0): 1}, {(1, 0): 0}, {(1, 0): 1}]),
        ([micro(ALL)], micro(ALL), [{(0, 0): 0}]),
        ([micro(*QUARTERS)], micro(QUARTERS[0], QUARTERS[1]), [{(0, 0): 0}, {(0, 0): 1}]),  # more than the golden has
        ([micro(UPPER, LOWER), micro(UPPER)], micro(ALL), [{(0, 0): 0, (0, 1): 1, (1, 0): 0}]),
    ],
)  # fmt: skip
def test_micro_batches(tmp_path, ranks, golden, linear):
    partners = partners_of(tmp_path, ranks, golden)
    own = [{at: int(one.name.split(".")[2]) for at, one in partners.found[f"Torch.linear.{number}.forward"].items()}
           for number in range(len(linear))]  # fmt: skip
    assert own == linear
    back = [{at: int(one.name.split(".")[2]) for at, one in partners.found[f"Torch.linear.{number}.backward"].items()}
            for number in range(len(linear))]  # fmt: skip
    assert back == linear


# Gradients of modules


def module(x, weight, number=0):
    return (f"Module.fc.{number}.forward", [x, weight], [x @ weight.T])


def gradients(*tensors, number=0):
    return (f"Module.fc.{number}.gradients", [], [*tensors])


FIRST, SECOND = numbers(8, 6, seed=20), numbers(8, 6, seed=21)


@pytest.mark.parametrize(
    "records, taken",
    [
        ([FIRST, SECOND], [0, 1]),  # each its own: their sum is the golden's
        ([FIRST, FIRST + SECOND], [1]),  # accumulated: the last one is
    ],
)
def test_gradients_of_micro_batches(tmp_path, records, taken):
    own = []
    for at, record in enumerate(records):
        own += [
            module(X[2 * at : 2 * at + 2], W, at),
            (f"Torch.sin.{at}.backward", [X], [X]),
            gradients(record, number=at),
        ]
    golden = [module(X, W), ("Torch.sin.0.backward", [X], [X]), gradients(FIRST + SECOND)]
    partners = partners_of(tmp_path, [own], golden)
    some = partners.found["Module.fc.0.gradients"]
    assert {at: one.name for at, one in some.items()} == {
        (0, place): f"Module.fc.{at}.gradients" for place, at in enumerate(taken)
    }


def other(name, calls):
    return [(one.replace(".fc.", f".{name}."), *more) for one, *more in calls]


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_gradient_that_modules_of_two_stages_share(tmp_path, is_equal):
    """Each stage has an addend of it."""
    last = FIRST + SECOND if is_equal else FIRST - SECOND
    sine = call("sin", [X], [X], phase="backward")
    golden = [module(X, W), *other("head", [module(Y[:, :1] * W[:4, :6], W)]), sine,
              gradients(FIRST + SECOND), *other("head", [gradients(last)])]  # fmt: skip
    ranks = [
        [module(X, W), ("Distributed.send.0.forward", [X], [], {"input:dst": 1}), sine, gradients(FIRST)],
        [("Distributed.recv.0.forward", [], [X], {"input:src": 0}), golden[1], sine,
         *other("head", [gradients(SECOND)])],
    ]  # fmt: skip
    partners = partners_of(tmp_path, ranks, golden)
    ranks_of = {name: {at for at, _ in partners.found[f"Module.{name}.0.gradients"]} for name in ("fc", "head")}
    assert ranks_of == ({"fc": {0, 1}, "head": {0, 1}} if is_equal else {"fc": {0}, "head": {1}})


# Updates


@pytest.mark.parametrize(
    "cuts, pieces",
    [
        ((4, 6, 12), {0: {0: 0}, 1: {0: 1, 1: 0}, 2: {1: 1}}),  # the second gradient borders on both parts
        ((4, 6, 11), {}),  # not all of the buffer
        ((4, 5, 12), {}),  # other parts than those that the ranks exchange
    ],
)
def test_pieces_of_one_buffer(tmp_path, cuts, pieces):
    """Sizes alone show them: equal gradients would have several places by their values."""
    flat, (first, border, end) = np.tile(numbers(2, seed=50), 6), cuts
    tensors = [flat[:4], flat[4:10], flat[10:]]
    parts = [[flat[:first], flat[first:border]],
             [one for one in (flat[border:10], flat[10:end]) if one.size]]  # fmt: skip
    before = [call("linear", [X, W], [Y]), call("linear", [Y], [X], phase="backward")]
    before.append(shared("reduce_scatter_tensor", flat, flat[:6]))
    own, golden = ([[*before, *(call("norm", [one], [np.float32(at + 0.3)], at) for at, one in enumerate(some))]
                    for some in side] for side in (parts, [tensors]))  # fmt: skip
    found = partners_of(tmp_path, own, golden[0]).found
    names = {at: {rank: int(one.name.split(".")[2]) for (rank, _), one in found[f"Torch.norm.{at}.forward"].items()}
             for at in range(3)}  # fmt: skip
    assert (names == pieces) == bool(pieces)


OWN, THEIRS = numbers(6, 6, seed=50), numbers(6, 6, seed=51) + 30
STEP = numbers(6, 6, seed=52)


def add(*tensors):
    return call("add", [*tensors], [tensors[0] + 1])


def stages(*updates):
    """Ranks of two stages, with what they run behind the backward pass."""
    sine, half = call("sin", [X], [X], phase="backward"), len(updates) // 2
    ranks = []
    for at, own in enumerate(updates):
        peer = at + half if at < half else at - half
        move = ("Distributed.send.0.forward", [X], [], {"input:dst": peer}) if at < half else (
            "Distributed.recv.0.forward", [], [X], {"input:src": peer})  # fmt: skip
        ranks.append([call("linear", [X, W], [X @ W.T]), move, sine, *own])
    return ranks


@pytest.mark.parametrize(
    "updates, ranks",
    [
        ([[add(OWN, STEP)], [add(THEIRS, STEP)]], {0}),  # another parameter
        ([[add(OWN, STEP)], [add(OWN[:3], STEP[:3])]], {0, 1}),
        ([[add(OWN + 1, STEP)], [add(THEIRS, STEP)]], {0, 1}),  # no stage has the golden's
        ([[add(OWN, STEP)], [add(np.concatenate([OWN[:3], THEIRS[3:]]), STEP)]], {0, 1}),  # a half of it
        # one rank of the second stage lacks it
        ([[add(OWN, STEP)], [add(OWN, STEP)], [add(np.concatenate([OWN[:3], THEIRS[3:]]), STEP)], []], {0, 1}),
        ([[add(OWN, STEP)], [], [], []], {0}),
        ([[add(OWN, STEP)]] * 4, {0, 1, 2, 3}),
    ],
)
def test_the_update_of_a_parameter_of_one_stage(tmp_path, updates, ranks):
    golden = [call("linear", [X, W], [X @ W.T]), call("sin", [X], [X], phase="backward"), add(OWN, STEP)]
    partners = partners_of(tmp_path, stages(*updates), golden)
    assert {at for at, _ in partners.found["Torch.add.0.forward"]} == ranks
