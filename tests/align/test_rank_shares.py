"""Tensors of which each rank has a share, between two places where the ranks make the golden's."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.rank_shares import hold_shares
from tests.align.rank_craft import numbers
from tests.align.rank_networks import call, searched, shared

HEADS, SIZE = 2, 4
QUERY, KEY, VALUE, OUT = (numbers(8, 8, seed=at) for at in range(4))
SEQUENCE = numbers(2, 8, 8, seed=9)


def unplaced(search):
    """The tensors that the ranks do not make: whether each is covered."""
    hold_shares(search)
    found = {}
    for operator in search.golden.operators:
        for one in operator.tensors:
            if search.state(operator, one) != "agrees":
                found[f"{operator.name.split('.', 1)[1]} {one.slot}"] = (operator.name, one.slot) in search.covered
    return found


def linear(tokens, weight, number=0):
    return call("linear", [tokens, weight], [product(tokens, weight)], number)


def product(tokens, weight):
    return (tokens @ weight.T).astype(np.float32)


def heads(tokens):
    return tokens.reshape(*tokens.shape[:2], HEADS, SIZE).transpose(0, 2, 1, 3)


def joined(tokens):
    return tokens.transpose(0, 2, 1, 3).reshape(tokens.shape[0], -1, HEADS * SIZE)


def attention(keys, values, query):
    """The attention of a query to blocks of keys and values, and the operators of it in blocks."""
    calls, scores = [], [query @ key.transpose(0, 1, 3, 2) for key in keys]
    largest = np.maximum.reduce([score.max(-1, keepdims=True) for score in scores])
    weights = [np.exp(score - largest) for score in scores]
    for at, (key, weight) in enumerate(zip(keys, weights)):
        calls += [call("matmul", [query, key], [scores[at]], at), call("exp", [scores[at] - largest], [weight], at)]
    total = sum(weight.sum(-1, keepdims=True) for weight in weights)
    return calls, (sum(weight @ value for weight, value in zip(weights, values)) / total).astype(np.float32)


def ring(skips):
    """Two ranks with half of a sequence each, whose keys and values go round; rank 1 may skip a block."""
    key, value = product(SEQUENCE, KEY), product(SEQUENCE, VALUE)
    blocks = [(heads(key[:, at : at + 4]), heads(value[:, at : at + 4])) for at in (0, 4)]
    for rank, own in enumerate((SEQUENCE[:, :4], SEQUENCE[:, 4:])):
        some = blocks[1:] if rank and skips else blocks
        calls, out = attention(*zip(*some), heads(product(own, QUERY)))
        yield [*(linear(own, weight, at) for at, weight in enumerate((QUERY, KEY, VALUE))), *calls,
               linear(joined(out), OUT, 3)]  # fmt: skip


@pytest.mark.parametrize("skips", [False, True])
def test_attention_in_blocks_against_one_call(tmp_path, skips):
    parts = [heads(product(SEQUENCE, weight)) for weight in (QUERY, KEY, VALUE)]
    _, out = attention([parts[1]], [parts[2]], parts[0])
    golden = [linear(SEQUENCE, weight, at) for at, weight in enumerate((QUERY, KEY, VALUE))]
    golden += [call("scaled_dot_product_attention", parts, [out]), linear(joined(out), OUT, 3)]
    found = unplaced(searched(tmp_path, [*ring(skips)], golden))
    assert {name for name in found if name.startswith("linear")} == (
        {"linear.3.forward input:0", "linear.3.forward output:0"} if skips else set()
    )
    assert all(found.values()) is not skips


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


def test_heads_that_several_ranks_have_in_a_fused_product(tmp_path):
    """Four ranks have a query head each, and two share a key head."""
    weight, tokens = numbers(2, 3, SIZE, 8, seed=20), SEQUENCE[..., :8]  # groups of two queries and a key
    whole = product(tokens, weight.reshape(-1, 8)).reshape(2, 8, 2, 3, SIZE)
    query, key = (whole[..., :2, :].reshape(2, 8, -1), whole[..., 2, :].reshape(2, 8, -1))
    golden = [call("linear", [tokens, weight.reshape(-1, 8)], [whole.reshape(2, 8, -1)]),
              call("sin", [query], [np.sin(query)]), call("cos", [key], [np.cos(key)])]  # fmt: skip
    ranks = []
    for rank in range(4):
        own = weight[rank // 2, [rank % 2, 2]].reshape(-1, 8)
        out = product(tokens, own)
        ranks.append([call("linear", [tokens, own], [out]), call("sin", [out[..., :SIZE]], [np.sin(out[..., :SIZE])]),
                      call("cos", [out[..., SIZE:]], [np.cos(out[..., SIZE:])]),
                      shared("all_gather", out, out, group=(0, 1, 2, 3))])  # fmt: skip
    assert not unplaced(searched(tmp_path, ranks, golden))
    ranks[3][2] = call("cos", [out[..., SIZE:] * 2], [np.cos(out[..., SIZE:] * 2)])
    found = unplaced(searched(tmp_path / "wrong", ranks, golden))
    assert not any(found.values())


@pytest.mark.parametrize("factor, is_share", [(1.0, True), (1e-3, False)])
def test_a_small_addend_hides_in_a_large_sum(tmp_path, factor, is_share):
    """A sum that agrees proves an addend only if it would show the error of the addend."""
    small, large = numbers(4, 6) * np.float32(factor), numbers(4, 6, seed=1) * np.float32(1e4 if factor < 1 else 1)
    golden = [call("sin", [small], [small]), call("add", [large, small], [large + small]),
              call("abs", [large + small], [large])]  # fmt: skip
    wrong = small * np.float32(1.5)
    ranks = [[call("sin", [small], [wrong]), call("add", [large, wrong], [large + (small if is_share else wrong)]),
              call("abs", [large + small], [large])] for _ in range(2)]  # fmt: skip
    found = unplaced(searched(tmp_path, ranks, golden))
    assert found["add.0.forward input:1"] is is_share


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


@pytest.mark.parametrize("is_reduced", [True, False])
def test_an_output_is_taken_from_a_reader_that_agrees(tmp_path, is_reduced):
    """Rows of a table in parts: without the reduction, the reader differs, and not what was looked up."""
    ids, table = np.array([0, 5, 3, 7, 2]), numbers(8, 6)
    whole, parts = table[ids], []
    for rank, own in enumerate((table[:4], table[4:])):
        is_own = ids // 4 == rank
        local = np.where(is_own, ids - 4 * rank, 0)
        term = np.where(is_own[:, None], own[local], 0).astype(np.float32)
        read = whole if is_reduced else term
        parts.append([call("embedding", [local, own], [own[local]]),
                      *([shared("all_reduce", term, whole)] if is_reduced else []),
                      call("abs", [read], [np.abs(read)])])  # fmt: skip
    golden = [call("embedding", [ids, table], [whole]), call("abs", [whole], [np.abs(whole)])]
    search = searched(tmp_path, parts, golden)
    unplaced(search)
    state = search.found["Torch.embedding.0.forward", "output:0"].state
    assert state == ("agrees" if is_reduced else "local")
    assert search.found["Torch.abs.0.forward", "input:0"].state == ("agrees" if is_reduced else "differs")


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
