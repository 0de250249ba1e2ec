"""The stage and the tensor rank of each rank, as far as records show them."""

import pytest

from npucmp.localise.rank_coordinates import Coordinates, coordinates
from npucmp.localise.rank_digest import GRADIENT, SIZE, TOLD, TOLD_FORWARD, WEIGHT, RankDigest


def rank(number, weights="", results="", **more):
    """A letter for the content of each parameter of the golden, and of each result of a collective; every
    tensor of the target differs."""
    text = weights + results
    names = tuple((f"op{at}", "input:1" if at < len(weights) else "output:0") for at in range(len(text)))
    kinds = WEIGHT * len(weights) + TOLD_FORWARD * len(results)
    golden = b"".join(letter.encode().ljust(SIZE) for letter in text)
    target = b"".join(f"{number} {at}".encode().ljust(SIZE) for at in range(len(text)))
    return RankDigest(0, number, names, kinds, "=" * len(text), golden, target, **more)


def found(*ranks):
    return {number: tuple(one) for number, one in coordinates(ranks).items()}


@pytest.mark.parametrize(
    "stage, part, words",
    [
        (None, None, ""),
        (0, None, "pipeline stage 0"),
        (None, 0, "tensor rank 0"),
        (1, 2, "pipeline stage 1, tensor rank 2"),
    ],
)
def test_coordinates_in_words(stage, part, words):
    assert Coordinates(stage, part).words == words


@pytest.mark.parametrize(
    "ranks",
    [[], [rank(0, "a", "s")], [rank(0, "a", "s"), rank(0, "b", "s"), rank(1, "c", "s")], [rank(None)] * 2],
)
def test_one_rank_or_ranks_without_numbers_have_no_coordinates(ranks):
    assert found(*ranks) == {}


def staged(**peers):
    """The stages of ranks by the calls of each: (other rank, whether it sends)."""
    ranks = [rank(int(name[1:]), peers=some) for name, some in peers.items()]
    return [stage for stage, _ in found(*ranks).values()]


@pytest.mark.parametrize(
    "peers, stages",
    [
        ({"r0": [(1, True)], "r1": [(0, False)]}, [0, 1]),
        ({"r0": [(1, False)], "r1": [(0, True)]}, [1, 0]),
        ({"r0": [(1, True)], "r1": [(0, False), (2, True)], "r2": [(1, False)]}, [0, 1, 2]),
        ({"r0": [(2, True)], "r1": [(3, True)], "r2": [(0, False)], "r3": [(1, False)]}, [0, 0, 1, 1]),
        ({"r0": [(1, True)], "r1": [(0, False)], "r2": []}, [0, 1, None]),
        # two ways of one length, and of two lengths
        ({"r0": [(1, True), (2, True)], "r1": [(0, False), (3, True)], "r2": [(0, False), (3, True)],
          "r3": [(1, False), (2, False)]}, [0, 1, 1, 2]),
        ({"r0": [(1, True), (2, True)], "r1": [(0, False), (2, True)], "r2": [(0, False), (1, False)]}, [None] * 3),
        ({"r0": [(1, True)], "r1": [(0, False), (2, True)], "r2": [(1, False), (3, True)],
          "r3": [(2, False), (2, True)]}, [None] * 4),  # it leads back
        ({"r0": [(1, True)], "r1": [(0, False)], "r2": [(3, True), (4, False)], "r3": [(2, False), (4, True)],
          "r4": [(3, False), (2, True)]}, [None] * 5),  # a circle beside a pipeline
        ({"r0": [(1, True)], "r1": []}, [None] * 2),
        ({"r0": [(1, True)], "r1": [(0, True)]}, [None] * 2),
        ({"r0": [(1, False)], "r1": [(0, False)]}, [None] * 2),
        ({"r0": [(1, True), (5, True)], "r1": [(0, False)]}, [None] * 2),
    ],
)  # fmt: skip
def test_stages(peers, stages):
    assert staged(**peers) == stages


def tensor_ranks(*ranks):
    return [part for _, part in found(*ranks).values()]


@pytest.mark.parametrize(
    "ranks, parts",
    [
        ([rank(0, "a", "s"), rank(1, "b", "s")], [0, 1]),
        ([rank(1, "a", "s"), rank(0, "b", "s")], [1, 0]),
        ([rank(0, "a", "s"), rank(1, "a", "s")], [None, None]),  # copies
        ([rank(0, "ax", "s"), rank(1, "bx", "s")], [0, 1]),  # some are copies
        ([rank(0, "xa", "s"), rank(1, "xb", "s")], [0, 1]),
        ([rank(0, "a", "s"), rank(1, "b", "s"), rank(2, "a", "s")], [None] * 3),  # not all have their own
        ([rank(0, "a", "s"), rank(1, "b", "s"), rank(2, "c", "s")], [0, 1, 2]),
        ([rank(0, "", "s"), rank(1, "", "s")], [None, None]),
        ([rank(0, "a", "st"), rank(1, "b", "su")], [None, None]),  # parts are exchanged
        ([rank(0, "a", "s"), rank(1, "b", "s"), rank(3, "c", "s")], [None] * 3),  # a rank is missing
        ([rank(1, "a", "s"), rank(2, "b", "s")], [None] * 2),
        # the smallest group counts
        ([rank(at, "abcd"[at], "st"[at // 2] + "u") for at in range(4)], [0, 1, 0, 1]),
        ([rank(at, "abcd"[at], "u" + "st"[at // 2]) for at in range(4)], [0, 1, 0, 1]),
    ],
)
def test_groups_that_got_the_same(ranks, parts):
    assert tensor_ranks(*ranks) == parts


@pytest.mark.parametrize(
    "groups, parts",
    [
        ([(2, 3)], [0, 1, None]),
        ([(2, 3, 5)], [0, 1, 2]),
        ([(3, 5)], [None, 0, 1]),
        ([(2, 3), (2, 3, 5)], [0, 1, None]),  # the smallest, and no rank twice
        ([(2, 9)], [None] * 3),  # a rank of it is missing
        ([(2,)], [None] * 3),
        ([], [None] * 3),
    ],
)
def test_groups_that_were_recorded(groups, parts):
    ranks = [rank(at, letter, groups=tuple(groups)) for at, letter in ((2, "a"), (3, "b"), (5, "c"))]
    assert tensor_ranks(*ranks) == parts


def test_a_group_has_parameters_of_one_name():
    ranks = rank(2, "ab", groups=((2, 3),)), rank(3, "c", groups=((2, 3),))
    assert tensor_ranks(*ranks) == [None, None]
    other = rank(3, "c", groups=((2, 3),))._replace(names=(("op9", "input:1"),))
    assert tensor_ranks(rank(2, "a", groups=((2, 3),)), other) == [None, None]
    graded = [rank(at, "ab"[at], groups=((0, 1),))._replace(kinds=GRADIENT) for at in (0, 1)]
    assert tensor_ranks(*graded) == [None, None]


def test_results_of_the_backward_pass_show_no_group():
    ranks = [rank(at, letter, "s") for at, letter in enumerate("ab")]
    assert tensor_ranks(*ranks) == [0, 1]
    assert tensor_ranks(*(one._replace(kinds=WEIGHT + TOLD) for one in ranks)) == [None, None]


def test_ranks_of_a_group_are_in_one_stage():
    """A pipeline of two stages, each of two tensor ranks; a group over stages is none."""
    ranks = [
        rank(at, "abcd"[at], "s" if at < 2 else "t", peers=((at ^ 2, at < 2),), groups=((0, 2), (1, 3)))
        for at in range(4)
    ]
    assert found(*ranks) == {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}
