"""Which placement of a tensor is chosen, and whether it agrees."""

from __future__ import annotations

import numpy as np
import pytest

from tests.align.rank_craft import numbers
from tests.align.rank_networks import (
    GX,
    H,
    V,
    W,
    X,
    Y,
    backward,
    by_statistics,
    call,
    decisions,
    layer,
    recorded,
    searched,
    shared,
    tensor_parallel,
    trained,
)

SQUARES = [numbers(6, 6, seed=30 + at) for at in range(3)]


def stack(weights):
    """Three products of one shape, each before a sine; the ranks hold parts of the weights."""
    calls, x = [], X
    for at, (whole, own) in enumerate(zip(SQUARES, weights)):
        calls += [call("linear", [x, own], [x @ own.T], at), call("sin", [x @ whole.T], [np.sin(x @ whole.T)], at)]
        x = np.sin(x @ whole.T)
    return calls


HALVES = [np.s_[:3], np.s_[3:]]


@pytest.mark.parametrize(
    "last, by, placement",
    [
        (lambda at, own: SQUARES[2][own] * (1 + 0.2 * at), "agreement", "shard(0) whole"),
        (lambda at, own: SQUARES[2][own] * (1 + 0.6 * at), "other layers", "shard(0) whole"),
        (lambda at, own: SQUARES[2][:, own].T.copy() * (1 + 0.6 * at), "other layers", "shard(0) whole"),
    ],
)
def test_the_placement_of_a_tensor_that_differs_is_that_of_other_layers(tmp_path, last, by, placement):
    """Unless one placement is near, and three times nearer than all others."""
    ranks = [stack([SQUARES[0][own], SQUARES[1][own], last(at, own)]) for at, own in enumerate(HALVES)]
    search = searched(tmp_path, ranks, stack(SQUARES))
    found = decisions(search)
    assert found["linear.2 in 1"] == f"differs, {placement}" and found["linear.1 in 1"] == placement
    assert search.found["Torch.linear.2.forward", "input:1"].by == by
    assert found["sin.2 in 0"] == "whole whole"


def product(parts, outputs=None):
    outputs = [None] * 2 if outputs is None else outputs
    return [[call("sin", [one], [X] if out is None else [out])] for one, out in zip(parts, outputs)]


@pytest.mark.parametrize("dtype, limit", [(np.float32, 1e-3), (np.float16, 0.05)])
@pytest.mark.parametrize("times, state", [(0.9, "agrees"), (1.1, "differs")])
def test_the_limit_of_agreement(tmp_path, dtype, limit, times, state):
    """Floats of 16 bits anywhere in a run make all of it coarse."""
    ranks = product([X[at] * np.float32(1 + times * limit) for at in (np.s_[:2], np.s_[2:])])
    golden = product([X])[0] + [call("abs", [Y.astype(dtype)], [Y.astype(dtype)])]
    search = searched(tmp_path, ranks, golden)
    found = search.found["Torch.sin.0.forward", "input:0"]
    assert (found.state, found.fit.placements[0].words) == (state, "shard(0)")


def test_an_error_of_the_limit_agrees(tmp_path):
    own, golden = (np.float32([[one, 0, 0], [0, 0, 0]]) for one in (1001, 1000))
    search = searched(tmp_path, [[call("sin", [own], [])]] * 2, [call("sin", [golden], [])])
    found = search.found["Torch.sin.0.forward", "input:0"]
    assert (found.state, found.fit.error) == ("agrees", 1e-3)


def test_a_tensor_without_values_agrees_by_its_statistics(tmp_path):
    """Beside others that have values."""
    calls = [call("sin", [recorded(X)], []), call("cos", [Y], [])]
    search = searched(tmp_path, [calls] * 2, calls)
    assert [one.state for one in search.found.values()] == ["agrees"] * 2


@pytest.mark.parametrize("dtype, limit", [(np.float32, 2e-3), (np.float16, 0.03)])
@pytest.mark.parametrize("times, state", [(0.9, "agrees"), (1.1, "differs")])
def test_the_limit_of_statistics(tmp_path, dtype, limit, times, state):
    golden = product([recorded(X)])[0] + [call("abs", [Y.astype(dtype)], [Y.astype(dtype)])]
    search = searched(tmp_path, product([recorded(X * np.float32(1 + times * limit))] * 2), golden, values=False)
    found = search.found["Torch.sin.0.forward", "input:0"]
    assert (found.state, found.fit.placements[0].words) == (state, "whole")


def test_terms_that_cancel_agree_within_their_own_rounding(tmp_path):
    """The ranks' products are about 1000 times their sum."""
    wide = 1000 * numbers(4, 8, seed=40)
    parts = [Y / 2 + wide[:, :5], Y / 2 - wide[:, :5]]
    for error, state in ((0.5, "agrees"), (5.0, "differs")):
        noise = error * numbers(4, 5, seed=41)
        ranks = tensor_parallel()
        for one, part, more in zip(ranks, parts, (noise, 0 * noise)):
            one[2] = call("linear", one[2][1], [part + more], 1)
            one[3] = shared("all_reduce", part + more, Y)
        search = searched(tmp_path / state, ranks, layer(W, V, Y))
        assert search.found["Torch.linear.1.forward", "output:0"].state == state


@pytest.mark.parametrize(
    "shapes, golden, words",
    [
        ([(8, 6), (8, 6)], (4, 6), "differs 8 whole"),
        ([(5, 6), (5, 6)], (4, 6), "differs 5 whole"),
        ([(8, 3), (8, 3)], (4, 6), "differs 8 shard(1)"),
        ([(3, 6, 6), (3, 6, 6)], (4, 6, 6), "differs 3 whole"),
        ([(3, 5), (3, 5)], (4, 6), "shape"),
        ([(4, 5), (4, 5)], (4, 6), "shape"),  # as many rows
        ([(8, 6), (7, 6, 1)], (4, 6), "shape"),
        ([(7,), (7,)], (4,), "shape"),
    ],
)
def test_another_number_of_rows(tmp_path, shapes, golden, words):
    """A router chose otherwise."""
    ranks = [[call("mix", [numbers(*shape)], [], prefix="Module")] for shape in shapes]
    search = searched(tmp_path, ranks, [call("mix", [numbers(*golden)], [], prefix="Module")])
    found = search.found.get(("Module.mix.0.forward", "input:0"))
    assert (f"{found.state} {found.rows} {found.placements[0].words}" if found.rows else found.state) == words
    if found.rows is not None:
        assert found.by == "shape" and found.fit.scale == 1.0 and found.fit.error == np.inf


def test_an_axis_of_ranks_splits_tensors_of_one_operator_alike(tmp_path):
    """The blocks of a dimension in which parts agree: a contiguous part before parts of two blocks."""
    wide = np.repeat(numbers(4, 1, seed=80), 8, axis=1)  # equal columns agree in any order
    ranks = [[call("sin", [wide[:, own]], [H[:, own]])] for own in (np.s_[:4], np.s_[4:])]
    found = decisions(searched(tmp_path, ranks, [call("sin", [wide], [H])]))
    assert found == {"sin.0 in 0": "shard(1) whole", "sin.0 out 0": "shard(1) whole"}


BLOCKS = [np.r_[0:2, 4:6], np.r_[2:4, 6:8]]


def test_of_placements_that_agree_that_of_the_other_tensors_is_taken(tmp_path):
    equal = np.repeat(numbers(4, 1, seed=80), 8, axis=1)
    ranks = [[call("add", [H[:, own], equal[:, :4]], [(H + equal)[:, own]])] for own in BLOCKS]
    search = searched(tmp_path, ranks, [call("add", [H, equal], [H + equal])])
    words = "shard(1, in 2 blocks) whole"
    assert decisions(search) == {"add.0 in 0": words, "add.0 in 1": words, "add.0 out 0": words}


def test_the_second_walk_knows_what_agrees_in_other_layers(tmp_path):
    """A tensor that agrees in several ways is held as that of other layers."""
    weights = [numbers(8, 6, seed=85), np.repeat(numbers(1, 6, seed=86), 8, axis=0), numbers(8, 6, seed=87)]
    ranks = [[call("mix", [one[own]], [], at) for at, one in enumerate(weights)] for own in BLOCKS]
    search = searched(tmp_path, ranks, [call("mix", [one], [], at) for at, one in enumerate(weights)])
    words = "shard(0, in 2 blocks) whole"
    assert decisions(search) == {f"mix.{at} in 0": words for at in range(3)}
    assert [one.by for one in search.found.values()][1] == "agreement"


# Near placements

SWAPPED = np.r_[0, 1, 4, 5, 2, 3, 6, 7]  # rows that ranks hold, in the order of parts of two blocks
EVEN, ODD = (one / np.linalg.norm(one) for one in (
    numbers(8, 6, seed=42) + numbers(8, 6, seed=42)[SWAPPED], numbers(8, 6, seed=41) - numbers(8, 6, seed=41)[SWAPPED]
))  # fmt: skip
PLAIN, IN_BLOCKS = "shard(0) whole", "shard(0, in 2 blocks) whole"


def between(plain, blocks):
    """Rows of the ranks, and a golden that is off from them by `plain`, and by `blocks` from two blocks of them. Other
    orders are far off."""
    size = 1.0
    for _ in range(30):  # both are relative to the golden
        own, golden = (plain + blocks) / 2 * size, (blocks - plain) / 2 * size
        size = (1 + golden * golden) ** 0.5
    return EVEN + own * ODD, EVEN + golden * ODD


def halves(whole, number=0):
    return [call("mix", [part], [], number) for part in np.split(whole, 2)]


def mixed(tmp_path, *pairs):
    """The search for layers with these rows of the ranks and of the golden."""
    ranks = [*zip(*(halves(own, at) for at, (own, _) in enumerate(pairs)))]
    return searched(tmp_path, ranks, [call("mix", [golden], [], at) for at, (_, golden) in enumerate(pairs)])


def state_of(search, at=0):
    found = search.found[f"Torch.mix.{at}.forward", "input:0"]
    return " ".join(each.words for each in found.placements), found.state, found.by


@pytest.mark.parametrize(
    "plain, blocks, words, state, by",
    [
        (9.5e-4, 1e-4, PLAIN, "agrees", "agreement"),
        (9.5e-4, 9e-5, IN_BLOCKS, "agrees", "agreement"),  # ten times nearer
        (1.1e-3, 9e-4, IN_BLOCKS, "agrees", "agreement"),  # the first one disagrees
        (9e-4, 1.1e-3, PLAIN, "agrees", "agreement"),
        (0.2, 0.62, PLAIN, "differs", "agreement"),
        (0.2, 0.58, PLAIN, "differs", "shape"),  # not three times nearer than others
        (0.29, 0.9, PLAIN, "differs", "agreement"),
        (0.31, 0.99, PLAIN, "differs", "shape"),  # not near
        (0.5, 0.4, IN_BLOCKS, "differs", "shape"),
    ],
)
def test_the_simple_placement_is_taken_unless_another_one_is_nearer(tmp_path, plain, blocks, words, state, by):
    assert state_of(mixed(tmp_path, between(plain, blocks))) == (words, state, by)


EXACT_BLOCKS = EVEN + ODD, EVEN - ODD


@pytest.mark.parametrize("plain, words, by", [(0.0, IN_BLOCKS, "agreement"), (5e-4, IN_BLOCKS, "agreement")])
def test_a_placement_of_other_layers_need_not_be_exact(tmp_path, plain, words, by):
    """The second layer agrees in parts in a row exactly, in blocks within the limit."""
    search = mixed(tmp_path, EXACT_BLOCKS, between(plain, 9e-4), EXACT_BLOCKS)
    assert state_of(search, 1) == (words, "agrees", by) and state_of(search, 0)[0] == words


@pytest.mark.parametrize(
    "plain, blocks, words, by",
    [
        (0.5, 0.4, IN_BLOCKS, "other layers"),
        (0.4, 0.5, IN_BLOCKS, "other layers"),
        (0.05, 0.7, PLAIN, "agreement"),
    ],
)
def test_a_tensor_that_differs_stands_as_in_other_layers(tmp_path, plain, blocks, words, by):
    assert state_of(mixed(tmp_path, EXACT_BLOCKS, between(plain, blocks)), 1) == (words, "differs", by)


def test_a_tensor_stands_as_what_it_reads_although_another_placement_is_exact(tmp_path):
    """The output agrees in two blocks; what is read from it agrees so within the limit."""
    own, _ = between(0.0, 9e-4)
    ranks = [[call("sin", [X], [part]), call("mix", [part], [])] for part in np.split(own, 2)]
    search = searched(tmp_path, ranks, [call("sin", [X], [own[SWAPPED]]), call("mix", [own], [])])
    assert decisions(search)["sin.0 out 0"] == IN_BLOCKS and state_of(search) == (IN_BLOCKS, "agrees", "agreement")


def test_a_product_that_differs_is_no_sum_although_the_sum_is_nearer(tmp_path):
    ranks = tensor_parallel()
    for one in ranks:
        one[2] = call("linear", one[2][1], [one[2][2][0] * np.float32(1.4)], 1)
    search = searched(tmp_path, ranks, layer(W, V, Y))
    found = search.found["Torch.linear.1.forward", "output:0"]
    assert decisions(search)["linear.1 out 0"] == "differs, whole whole" and found.by == "shape"


@pytest.mark.parametrize("seed", [45, 46])
def test_a_gradient_of_a_split_weight_that_differs_is_a_sum(tmp_path, seed):
    """The ranks compute parts of it from their parts of the weight; no placement is near."""
    ranks, whole = trained(), [*layer(W, V, Y), *backward(np.s_[:], GX)]
    for at, one in enumerate(ranks):
        name, reads, (_, weight) = one[-1]
        one[-1] = (name, reads, [numbers(*GX.shape, seed=seed + 10 * at), weight])
    search = searched(tmp_path, ranks, whole)
    found = search.found["Torch.linear.0.backward", "output:0"]
    assert decisions(search)["linear.0 back out 0"] == "differs, sum whole" and found.by == "flow"


@pytest.mark.parametrize("size, scale", [(1, None), (2, 2.0), (3, 2.0)])
def test_the_first_gradient_of_several_elements_shows_the_factor(tmp_path, size, scale):
    gradient = numbers(size, seed=44)
    calls = [[call("sin", [X], [Y]), call("sin", [gradient * by], [], phase="backward")] for by in (2, 1)]
    search = searched(tmp_path, [calls[0]] * 2, calls[1])
    assert search.scale == scale and search.found["Torch.sin.0.backward", "input:0"].fit.scale == 2.0


# Numbers


def gradient_of_a_factor(rows, gradient):
    factor = np.float32(0.37)
    return [call("mix", [factor, X[rows]], [Y[rows]]), call("mix", [Y[rows]], [np.float32(gradient)], phase="backward")]


@pytest.mark.parametrize(
    "own, words",
    [
        ((3.3, 3.3), "whole whole"),
        ((3.302, 3.302), "whole whole"),
        ((3.302, 3.299), "sum whole, 2 times"),  # nearer, if not ten times
        ((1.1, 2.2), "sum whole"),
    ],
)
def test_the_nearest_placement_of_one_number_is_taken(tmp_path, own, words):
    ranks = [gradient_of_a_factor(rows, one) for rows, one in zip((np.s_[:2], np.s_[2:]), own)]
    search = searched(tmp_path, ranks, gradient_of_a_factor(np.s_[:], 3.3))
    assert decisions(search)["mix.0 back out 0"] == words


def test_the_nearest_placement_of_one_number_is_taken_although_other_layers_have_another(tmp_path):
    def calls(rows, *gradients):
        return [(f"Torch.mix.{at}.{one[0].rsplit('.', 1)[1]}", *one[1:])
                for at, each in enumerate(gradients) for one in gradient_of_a_factor(rows, each)]  # fmt: skip

    ranks = [calls(np.s_[2 * at : 2 * at + 2], 3.3, 3.7, (3.502, 3.499)[at]) for at in (0, 1)]
    found = decisions(searched(tmp_path, ranks, calls(np.s_[:], 3.3, 3.7, 3.5)))
    assert [found[f"mix.{at} back out 0"] for at in range(3)] == ["whole whole"] * 2 + ["sum whole, 2 times"]


def test_the_placement_of_one_number_that_agrees_in_several_ways_is_that_of_other_layers(tmp_path):
    def calls(number, rows):
        return [call("mean", [X[rows] + at], [np.float32(number + at)], at) for at in range(2)]

    search = searched(tmp_path, [calls(3.302, rows) for rows in (np.s_[:2], np.s_[2:])], calls(3.3, np.s_[:]))
    found = [search.found[f"Torch.mean.{at}.forward", "output:0"] for at in range(2)]
    assert [(one.by, one.placements[0].words) for one in found] == [("other layers", "whole")] * 2


def test_a_sum_of_which_statistics_are_recorded_has_no_rounding_of_terms(tmp_path):
    """The norms of the terms, however large, excuse no other mean."""
    wide = 1000 * numbers(4, 5, seed=43)
    parts = [Y / 2 + wide + 0.3, Y / 2 - wide]
    whole = layer(W, V, Y)
    ranks = [
        by_statistics([*one[:2], call("linear", one[2][1], [part], 1)]) for one, part in zip(tensor_parallel(), parts)
    ]
    search = searched(tmp_path, ranks, by_statistics(whole[:3]), values=False)
    assert search.found["Torch.linear.1.forward", "output:0"].state == "differs"


# What a tensor reads

TOKENS, HALF = numbers(6, 6, seed=71), (np.s_[:3], np.s_[3:])


@pytest.mark.parametrize(
    "reads, by",
    [
        ((0, 0), "flow"),
        ((1, 0), "shape"),  # the ranks read tensors of two operators
        ((2, 0), "shape"),  # a rank reads what the golden does not compute
        ((3, 0), "shape"),  # or what a collective wrote
    ],
)
def test_a_tensor_that_differs_stands_as_what_it_reads(tmp_path, reads, by):
    """If all ranks read one tensor."""
    exact = TOKENS[:, :4]
    wrong = np.roll(exact, 1, axis=0)

    def calls(own, first, read, more=()):
        return [call("sin", [own], [first]), call("cos", [own], [own * 2]), *more, call("mix", [read], [])]

    ranks = []
    for at, rows in enumerate(HALF):
        own = exact[rows]
        extra = numbers(3, 4, seed=90 + at)
        read = (own, own * 2, extra, extra)[reads[at]]
        more = [call("tan", [own], [extra])] * (reads[at] == 2) + [shared("all_gather", own, extra)] * (reads[at] == 3)
        ranks.append(calls(own, own, read, more))
    search = searched(tmp_path, ranks, calls(exact, exact, wrong))
    found = search.found["Torch.mix.0.forward", "input:0"]
    assert (found.state, found.by) == ("differs", by)
