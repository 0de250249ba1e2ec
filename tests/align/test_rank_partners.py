"""Operators of ranks beside those of one golden run: by lane, stage, micro batch, and parameter."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.layout_sizes import parse_layout
from npucmp.align.rank_partners import RankPartners, groups_of, missing_ranks
from tests.align.rank_craft import numbers, rank_of
from tests.align.rank_networks import V, W, X, Y, backward, batch, call, layer, shared, tensor_parallel, trained

GX = np.s_[:]


def partners_of(folder, ranks, golden, **more):
    runs = {at: rank_of(folder / f"{at}", calls, at) for at, calls in enumerate(ranks)}
    return RankPartners(runs, rank_of(folder / "golden", golden), **more)


def found(partners, of=None):
    """The names of partners by (rank, micro batch), for each golden operator that has one."""
    short = {name: {at: one.name.split(".", 1)[1] for at, one in some.items()} for name, some in partners.found.items()}
    return {name.split(".", 1)[1]: some for name, some in short.items() if some}


# Facts of the records


def test_groups_and_missing_ranks(tmp_path):
    runs = {
        0: rank_of(
            tmp_path / "0", [shared("all_reduce", X, X, group=(0, 3)), shared("all_gather", X, X, group=(3, 0))]
        ),
        1: rank_of(tmp_path / "1", [call("sin", [X], [X])], 1),
    }
    assert groups_of(runs) == {(0, 3), (3, 0)} and missing_ranks(runs) == [3]
    assert missing_ranks({1: runs[1]}) == [0] and missing_ranks({}) == [] and missing_ranks({0: runs[1]}) == []


@pytest.mark.parametrize(
    "kind, peer, missing", [("send", 4, [4]), ("send", 0, []), ("send", -1, []), ("broadcast", 4, [])]
)
def test_a_rank_that_a_send_names(tmp_path, kind, peer, missing):
    runs = {at: rank_of(tmp_path / f"{at}", [(f"Distributed.{kind}.0.forward", [X], [], {"input:dst": peer})], at)
            for at in (0, 1)}  # fmt: skip
    assert missing_ranks(runs) == missing


def test_recorded_groups_are_sorted_by_size(tmp_path):
    calls = [("Torch.sin.0.forward", [X], [X])]
    calls += [
        (f"Distributed.all_reduce.{at}.forward", [X], [X], group)
        for at, group in enumerate([(1, 3), (0, 1, 2, 3), (0, 2)])
    ]
    partners = partners_of(tmp_path, [calls] * 4, calls[:1])
    assert partners.groups == [(0, 2), (1, 3), (0, 1, 2, 3)]


# Lanes and stages


def test_ranks_that_split_a_layer(tmp_path):
    partners = partners_of(tmp_path, trained(), [*layer(W, V, Y), *backward(GX, X)])
    both = [(0, 0), (1, 0)]
    assert found(partners) == {
        one.name.split(".", 1)[1]: dict.fromkeys(both, one.name.split(".", 1)[1]) for one in partners.golden.operators
    }
    assert partners.micro_batches == 1 and partners.lanes == [[0], [1]] and not partners.is_replica
    assert partners.mesh(partners.golden.operators[0]).ranks == (0, 1)
    first = partners.golden.operators[0]
    assert {partners.golden_of[at, first.name] for at in (0, 1)} == {first}
    assert (0, "Distributed.all_reduce.0.forward") not in partners.golden_of


def staged(sends=True):
    """The layer on two stages."""
    first, second, third, fourth = layer(W, V, Y)
    move = [("Distributed.send.0.forward", [second[2][0]], [], {"input:dst": 1})] if sends else []
    take = [("Distributed.recv.0.forward", [], [second[2][0]], {"input:src": 0})] if sends else []
    return [[first, second, *move], [*take, third, fourth]]


def test_stages_of_a_pipeline_have_operators_of_their_own(tmp_path):
    partners = partners_of(tmp_path, staged(), layer(W, V, Y))
    assert partners.stages == {0: 0, 1: 1} and partners.lanes == [[0, 1]]
    assert {name: [*some] for name, some in found(partners).items()} == {
        "linear.0.forward": [(0, 0)], "relu.0.forward": [(0, 0)],
        "linear.1.forward": [(1, 0)], "add.0.forward": [(1, 0)],
    }  # fmt: skip
    assert [partners.mesh(one).ranks for one in partners.golden.operators] == [(0,), (0,), (1,), (1,)]


def test_stages_of_a_stated_layout(tmp_path):
    for sends, text, stages in ((False, "pp=2", [0, 1]), (False, "tp=2", [0, 0]), (True, "tp=2", [0, 1])):
        folder = tmp_path / f"{text} {sends}"
        partners = partners_of(folder, staged(sends), layer(W, V, Y), sizes=parse_layout(text))
        assert [*partners.stages.values()] == stages


# Micro batches


def numbered(calls, number):
    return [(name.replace(".0.", f".{number}."), *more) for name, *more in calls]


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


def test_an_operator_that_a_micro_batch_lacks_has_no_mesh(tmp_path):
    partners = partners_of(tmp_path, [micro(UPPER, LOWER), micro(UPPER)], micro(ALL))
    assert partners.mesh(partners.golden.operators[0]) is None
    assert partners_of(tmp_path / "none", [micro(UPPER)[2:]], micro(ALL)).mesh(partners.golden.operators[0]) is None


def test_an_operator_that_a_rank_of_the_stage_lacks_has_no_mesh(tmp_path):
    """Unless ranks of the layout are missing."""
    ranks, golden = tensor_parallel(), layer(W, V, Y)
    del ranks[1][1]
    partners = partners_of(tmp_path, ranks, golden)
    assert [partners.mesh(one) is None for one in partners.golden.operators] == [False, True, False, False]
    partners = partners_of(tmp_path / "missing", ranks, golden, missing=[2])
    assert [partners.mesh(one) is None for one in partners.golden.operators] == [False] * 4


# Axes


@pytest.mark.parametrize(
    "groups, more, sizes",
    [
        ([], {}, (2, 2, 1)),
        ([(0, 1, 2, 3)], {}, (2, 2, 1)),
        ([], {"sizes": parse_layout("tp=4")}, (2, 2, 1)),
        ([], {"sizes": parse_layout("tp=2,dp=2")}, (2, 2, 1)),
        ([], {"missing": [4]}, (4, 1)),
        ([], {"missing": [4, 5, 6, 7], "sizes": parse_layout("tp=8")}, (4, 1)),
        ([], {"missing": [4, 5, 6, 7], "sizes": parse_layout("tp=4,dp=2")}, (2, 2, 1)),
    ],
)
def test_axes_of_four_ranks(tmp_path, groups, more, sizes):
    calls = [call("sin", [X], [X]), *[shared("all_reduce", X, X, group=group) for group in groups]]
    partners = partners_of(tmp_path, [calls] * 4, calls[:1], **more)
    assert partners.mesh(partners.golden.operators[0]).sizes == sizes
    assert partners.is_replica is (more.get("sizes") == parse_layout("tp=4,dp=2"))


@pytest.mark.parametrize("text, sizes", [(None, (2, 3, 1)), ("tp=3,dp=2", (3, 2, 1)), ("tp=2,dp=2", (2, 3, 1)),
                                         ("tp=6", (2, 3, 1))])  # fmt: skip
def test_axes_of_six_ranks(tmp_path, text, sizes):
    calls = [call("sin", [X], [X])]
    more = {} if text is None else {"sizes": parse_layout(text)}
    partners = partners_of(tmp_path, [calls] * 6, calls, **more)
    assert partners.mesh(partners.golden.operators[0]).sizes == sizes


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


def test_modules_of_one_rank_with_equal_gradients_have_their_own(tmp_path):
    """Each of two ranks has the whole network, whose weight is shared."""
    calls = [module(X, W), *other("head", [module(Y[:, :1] * W[:4, :6], W)]), call("sin", [X], [X], phase="backward"),
             gradients(FIRST), *other("head", [gradients(FIRST)])]  # fmt: skip
    partners = partners_of(tmp_path, [calls] * 2, calls)
    for name in ("Module.fc.0.gradients", "Module.head.0.gradients"):
        assert {at: one.name for at, one in partners.found[name].items()} == {(0, 0): name, (1, 0): name}


# Updates


def updated(*order, numbers_of=()):
    """Two products with square weights, and their updates in an order."""
    weights = [numbers(6, 6, seed=30), numbers(6, 6, seed=31)]
    calls = [call("linear", [X, one], [X @ one], at) for at, one in enumerate(weights)]
    calls.append(call("linear", [X], [X], 1, "backward"))
    for place, at in enumerate(order):
        step = np.float32(0.1) * numbers(6, 6, seed=40 + at)
        calls += [
            call("mul", [step], [step * 3], place),
            call("add", [weights[at], step * 3], [weights[at] + 1], place),
        ]
    return calls


def test_updates_are_those_of_one_parameter(tmp_path):
    """Whatever their order: as many as stand in one order on both sides."""
    partners = partners_of(tmp_path, [updated(1, 0), updated(0, 1)], updated(0, 1))
    some = {name: {at[0]: one.name for at, one in partners.found[name].items()}
            for name in ("Torch.add.0.forward", "Torch.add.1.forward")}  # fmt: skip
    assert all(own.get(1) == name for name, own in some.items())
    assert [own.get(0) for own in some.values()] in (["Torch.add.1.forward", None], [None, "Torch.add.0.forward"])
    steps = [partners.found[f"Torch.mul.{at}.forward"].get((0, 0)) for at in range(2)]  # what makes the steps
    assert [one.name if one else None for one in steps] in (
        ["Torch.mul.1.forward", None],
        [None, "Torch.mul.0.forward"],
    )


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


@pytest.mark.parametrize("is_equal", [True, False])
def test_the_update_of_a_parameter_whose_module_the_ranks_compute_otherwise(tmp_path, is_equal):
    """Its values show it; else the order of the updates does, which is that of the golden here."""
    weights = [numbers(6, seed=32), numbers(6, seed=33)]
    step = numbers(6, seed=42)

    def run(kind, given):
        calls = [call(kind, [X, one], [X * one], at) for at, one in enumerate(given)]
        calls.append(call(kind, [X], [X], 1, "backward"))
        return calls + [call("add", [one, step], [one + step], at) for at, one in enumerate(given)]

    own = weights if is_equal else [weights[0], weights[1] + 1]
    partners = partners_of(tmp_path, [run("mul", own)], run("batch_norm", weights))
    assert not partners.found["Torch.batch_norm.0.forward"]
    assert [partners.found[f"Torch.add.{at}.forward"][0, 0].name for at in range(2)] == [
        "Torch.add.0.forward", "Torch.add.1.forward"
    ]  # fmt: skip


def test_an_update_of_which_one_rank_splits_the_buffer(tmp_path):
    """FSDP: each rank has rows of the parameter, and the golden all."""
    weight, group = numbers(6, 6, seed=30), (0, 1)
    step = numbers(6, 6, seed=40)
    golden = [call("linear", [X, weight], [X @ weight]), call("linear", [X], [X], phase="backward"),
              call("add", [weight, step], [weight + step])]  # fmt: skip
    ranks = [[*golden[:2], call("add", [weight[own], step[own]], [(weight + step)[own]]),
              shared("all_gather", (weight + step)[own], weight + step, group=group)]
             for own in (np.s_[:3], np.s_[3:])]  # fmt: skip
    partners = partners_of(tmp_path, ranks, golden)
    ((at, part),) = partners.found["Torch.add.0.forward"].items()
    assert at == (0, 0) and part.ranks == group and np.array_equal(part.inputs[0].array, weight)
    assert partners.mesh(partners.golden.operators[2]).ranks == group
    assert {(0, "Torch.add.0.forward"), (0, "Torch.linear.0.forward")} <= {*partners.golden_of}


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


# Experts

TOKENS = numbers(3, 6, seed=60) + 30  # tokens that no golden expert gets
MADE = TOKENS @ W.T


def experts(activation="silu", more=(), reads=MADE, name="silu"):
    """An expert with other tokens than the golden's, and its activation, whose rows are none of the golden's."""
    return [call("linear", [TOKENS, W], [MADE]), call(name, [reads], [MADE * 2]), *more]


@pytest.mark.parametrize(
    "rank, golden_more, is_partner",
    [
        (experts(), [], True),
        (experts(name="gelu"), [], False),
        (experts(reads=MADE + 1), [], False),  # it reads another tensor
        (experts(more=[call("sin", [MADE], [MADE * 3])]), [], False),  # not the only reader
        (experts(), [call("sin", [X @ W.T], [X])], False),
        ([experts()[0], call("silu", [MADE, TOKENS], [MADE * 2])], [], False),  # another number of inputs
        ([experts()[0], ("Torch.silu.0.forward", [MADE], [MADE * 2, MADE])], [], False),
    ],
)
def test_an_activation_of_an_expert_is_the_only_reader_of_what_partners_wrote(tmp_path, rank, golden_more, is_partner):
    golden = [call("linear", [X, W], [X @ W.T]), call("silu", [X @ W.T], [numbers(4, 8, seed=61)]), *golden_more]
    partners = partners_of(tmp_path, [rank], golden)
    assert {*partners.found["Torch.linear.0.forward"]} == {(0, 0)}
    assert bool(partners.found["Torch.silu.0.forward"]) is is_partner


def test_tokens_are_picked_for_the_expert_that_reads_them(tmp_path):
    """A router sends the same tokens to two experts; the rank has the second one."""
    some, other = X[:2], numbers(8, 6, seed=62)
    picks = [call("index_select", [X, np.array([0, 1])], [some], at) for at in range(2)]
    golden = [*picks, call("linear", [some, W], [some @ W.T]), call("linear", [some * 2, other], [some @ other.T], 1)]
    golden[1] = call("index_select", [X * 2, np.array([0, 1])], [some * 2], 1)
    rank = [
        call("index_select", [X * 2, np.array([0, 1])], [some * 2]),
        call("linear", [some * 2, other], [some @ other.T]),
    ]
    partners = partners_of(tmp_path, [rank], golden)
    assert [{*partners.found[f"Torch.index_select.{at}.forward"]} for at in range(2)] == [set(), {(0, 0)}]


@pytest.mark.parametrize(
    "rows, origin, is_partner",
    [(3, "none", False), (2, "none", True), (3, "operator", True)],
)
def test_pieces_that_a_rank_joins(tmp_path, rows, origin, is_partner):
    """The golden joins what operators wrote; pieces of a rank that none wrote, and of no part's shape, are others."""
    left, right = np.cos(X), np.cos(Y)
    golden = [call("cos", [X], [left]), call("cos", [Y], [right], 1), call("cat", [left, right], [Y * 2])]
    piece = left[:rows]
    before = [call("slice", [left], [piece])] if origin == "operator" else []
    rank = [*golden[:2], *before, call("cat", [piece, right], [Y * 2])]
    partners = partners_of(tmp_path, [rank], golden)
    assert bool(partners.found["Torch.cat.0.forward"]) is is_partner
