"""Tensors of which each rank has a share, between two places where the ranks make the golden's."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.relations.ranks.rank_shares import hold_shares
from tests.align.rank_craft import numbers
from tests.align.rank_networks import call, searched, shared


def unplaced(search):
    """The tensors that the ranks do not make: whether each is covered."""
    hold_shares(search)
    found = {}
    for operator in search.golden.operators:
        for one in operator.tensors:
            if search.state(operator, one) != "agrees":
                found[f"{operator.name.split('.', 1)[1]} {one.slot}"] = (operator.name, one.slot) in search.covered
    return found


@pytest.mark.parametrize("is_reduced", [True, False])
def test_lists_of_squares_that_are_shorter_on_a_rank(tmp_path, is_reduced):
    """Rank 1 leaves out the parameter that both ranks have."""
    both, split = np.float32(2.5), numbers(4, 6)
    halves = [np.float32((part**2).sum()) for part in (split[:2], split[2:])]
    total = np.float32(both + sum(halves))

    def norm(squares, read, reduced=()):
        added = np.float32(sum(squares))
        return [call("sin", [split], [split * 2]), call("sin", [split], [split], phase="backward"),
                call("sum", [np.float32(squares)], [added]), *reduced,
                call("sqrt", [read], [np.sqrt(read)])]  # fmt: skip

    ranks = []
    for squares in ([both, halves[0]], [halves[1]]):
        own = np.float32(sum(squares))
        collective = [shared("all_reduce", own, total)] if is_reduced else []
        ranks.append(norm(squares, total if is_reduced else own, collective))
    found = unplaced(searched(tmp_path, ranks, norm([both, sum(halves)], total)))
    assert found["sum.0.forward input:0"] is found["sum.0.forward output:0"] is is_reduced


@pytest.mark.parametrize("is_wrong", [False, True])
def test_what_a_rank_writes_into_is_left_to_the_reader(tmp_path, is_wrong):
    """Each rank looks up its own part, and sets the rest to zero before the reduction."""
    whole, other, masks = numbers(8, 6), numbers(8, 6, seed=1), np.arange(8)[:, None] // 4 == np.arange(2)
    read = np.roll(whole, 1, 0) if is_wrong else whole
    looked_up = [np.where(masks[:, at, None], read, numbers(8, 6, seed=2 + at)) for at in range(2)]
    golden = [call("setitem", [whole, np.zeros((8, 1), bool)], []), call("sub", [other, whole], [other - whole])]
    ranks = [[call("setitem", [own, ~masks[:, at, None]], []), shared("all_reduce", own, read),
              call("sub", [other, read], [other - read])] for at, own in enumerate(looked_up)]  # fmt: skip
    search = searched(tmp_path, ranks, golden)
    found = unplaced(search)
    assert search.found["Torch.setitem.0.forward", "input:0"].state == "local"
    assert found["setitem.0.forward input:0"] is not is_wrong
    assert ("sub.0.forward input:1" in found) is is_wrong


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_place_of_a_maximum_does_not_prove_a_copy(tmp_path, is_wrong):
    """Rank 1 reads twice as much; the numbers of the largest elements are equal."""
    read, table = numbers(4, 6), numbers(6, 3, seed=1)
    found = read.argmax(-1)

    def picked(own):
        return [call("argmax", [own], [found]), call("embedding", [found, table], [table[found]])]

    search = searched(tmp_path, [picked(read), picked(read * 2 if is_wrong else read)], picked(read))
    assert unplaced(search) == ({"argmax.0.forward input:0": False} if is_wrong else {})


@pytest.mark.parametrize("flag, is_share", [(0.0, True), (1.0, False)])
def test_lists_of_flags_of_other_lengths(tmp_path, flag, is_share):
    """Each rank has a flag of overflow for each of its own gradients."""
    scaled = numbers(4, 6)

    def found(count, value=0.0):
        return [call("sin", [scaled], [scaled * 2]), call("sin", [scaled], [scaled], phase="backward"),
                call("amax", [np.full(count, value, np.float32)], [np.float32(0.0)]),
                call("mul", [scaled], [scaled * 3])]  # fmt: skip

    search = searched(tmp_path, [found(3, flag), found(3, flag)], found(5))
    assert unplaced(search)["amax.0.forward input:0"] is is_share


@pytest.mark.parametrize("is_reduced", [True, False])
def test_norms_of_replicas_whose_partners_have_shorter_lists(tmp_path, is_reduced):
    """Ranks 0 and 2 are replicas, which count what all ranks hold; ranks 1 and 3 do not, and have no partner."""
    both, split = np.float32(2.5), numbers(4, 6)
    halves = [np.float32((part**2).sum()) for part in (split[:2], split[2:])]
    total = np.float32(both + sum(halves))

    def norm(squares, read, *reduced):
        return [call("sin", [split], [split * 2]), call("sin", [split], [split], phase="backward"),
                call("sum", [np.float32(squares)], [np.float32(sum(squares))]), *reduced,
                call("sqrt", [read], [np.sqrt(read)])]  # fmt: skip

    ranks = []
    for rank in range(4):
        squares, group = ([halves[1]] if rank % 2 else [both, halves[0]]), (rank // 2 * 2, rank // 2 * 2 + 1)
        own = np.float32(sum(squares))
        collective = [shared("all_reduce", own, total, group=group)] if is_reduced else []
        ranks.append(norm(squares, total if is_reduced else own, *collective))
    found = unplaced(searched(tmp_path, ranks, norm([both, sum(halves)], total)))
    assert found["sum.0.forward input:0"] is is_reduced
