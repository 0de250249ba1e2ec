"""The stage and the tensor rank of each rank, as far as records show them."""

import pytest

from npucmp.localise.rank_digest import TOLD_FORWARD, WEIGHT, RankDigest, coordinates


def rank(number, weights="", results="", **more):
    """A letter for the content of each parameter of the golden, and of each result of a collective; every
    tensor of the target differs."""
    text = weights + results
    names = tuple((f"op{at}", "input:1" if at < len(weights) else "output:0") for at in range(len(text)))
    kinds = WEIGHT * len(weights) + TOLD_FORWARD * len(results)
    target = [100 * number + at for at in range(len(text))]
    return RankDigest(0, number, names, kinds, (False,) * len(text), [*map(ord, text)], target, **more)


def found(*ranks):
    return {number: tuple(one) for number, one in coordinates(ranks).items()}


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
