"""What the walk over a golden's operators makes of indices, experts, gradients and updates that ranks hold."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.model import Statistics
from tests.align.craft import Recorded
from tests.align.rank_craft import numbers
from tests.align.rank_networks import H, W, X, Y, call, decisions, searched, shared

UPPER, LOWER = np.s_[:2], np.s_[2:]
SINE = call("sin", [X], [H])


# Zigzag


def zigzag(whole, rank):
    """Two of four blocks of rows, counted from both ends."""
    blocks = np.split(whole, 4)
    return np.concatenate([blocks[rank], blocks[3 - rank]])


@pytest.mark.parametrize("other, words", [("zigzag", "zigzag(0)"), ("plain", "shard(0, in blocks 2:1:1)")])
def test_a_tensor_that_differs_stands_in_a_zigzag_if_another_one_does(tmp_path, other, words):
    near, exact = numbers(8, 3, seed=60), numbers(8, 3, seed=61)
    parts = [zigzag(exact, rank) if other == "zigzag" else np.split(exact, 2)[rank] for rank in (0, 1)]
    ranks = [[call("sin", [zigzag(near, rank) * (1 + 0.2 * rank)], []), call("cos", [part], [])]
             for rank, part in enumerate(parts)]  # fmt: skip
    found = decisions(searched(tmp_path, ranks, [call("sin", [near], []), call("cos", [exact], [])]))
    assert found["sin.0 in 0"] == f"differs, {words} whole"


# Sums of two partial sums

U = numbers(8, 6, seed=62)
P, Q = ([X[:, own] @ one[:, own].T for own in (np.s_[:3], np.s_[3:])] for one in (W, U))
TOTAL = sum(P) + sum(Q)


def two_products(x, w, u, p, q, end, reduced=()):
    """The sum of two products; the ranks reduce the second before it is added, or the sum."""
    return [
        call("linear", [x, w], [p]),
        call("linear", [x, u], [reduced[0] if reduced else q], 1),
        *([shared("all_reduce", reduced[0], q)] if reduced else []),
        call("add", [p, q], [p + q]),
        *([("Distributed.all_reduce.1.forward", [p + q], [TOTAL], (0, 1))] if end else []),
        call("sin", [TOTAL], [np.sin(TOTAL)]),
    ]


@pytest.mark.parametrize(
    "is_reduced, first, second, output",
    [(False, "sum whole", "sum whole", "sum whole"),
     (True, "differs, whole whole, illegal", "whole whole", "differs, whole whole")],
)  # fmt: skip
def test_partial_sums_may_be_added_to_partial_sums_alone(tmp_path, is_reduced, first, second, output):
    own = [(X[:, part], W[:, part], U[:, part]) for part in (np.s_[:3], np.s_[3:])]
    ranks = [two_products(*own[at], P[at], sum(Q) if is_reduced else Q[at], True, [Q[at]] * is_reduced)
             for at in (0, 1)]  # fmt: skip
    found = decisions(searched(tmp_path, ranks, two_products(X, W, U, sum(P), sum(Q), False)))
    assert [found[f"add.0 {slot}"] for slot in ("in 0", "in 1", "out 0")] == [first, second, output]
    assert found["linear.1 out 0"] == "sum whole" and found["sin.0 in 0"] == "whole whole"


# Indices and masks of a rank

IDS = np.array([3, 1, 0])


def rows_of(at, makes_indices):
    """Half of the rows in reverse order, and rows picked from them."""
    whole = (X * 2)[2 * at : 2 * at + 2]
    table, own = whole[::-1].copy(), np.clip(2 * at + 1 - IDS, 0, 1) if makes_indices else IDS
    return [
        call("sin", [X[2 * at : 2 * at + 2]], [whole]),
        *([call("clip", [IDS * 0.5, IDS.astype(np.int32), IDS[:2], IDS], [own])] if makes_indices else []),
        call("flip", [whole], [table]),
        call("index_select", [table, own], [table[own % 2]]),
    ]


@pytest.mark.parametrize(
    "makes_indices, table, picked",
    [(True, "local", "local"), (False, "differs, shard(0) whole", "differs, whole whole")],
)
def test_the_table_in_which_a_rank_looks_up_its_own_indices_may_be_its_own(tmp_path, makes_indices, table, picked):
    golden = [call("sin", [X], [X * 2]), call("index_select", [X * 2, IDS], [(X * 2)[IDS]])]
    found = decisions(searched(tmp_path, [rows_of(at, makes_indices) for at in (0, 1)], golden))
    assert found["index_select.0 in 1"] == "whole whole"  # of one's own indices, those that they are made of
    assert (found["index_select.0 in 0"], found["index_select.0 out 0"]) == (table, picked)


MASKS = [np.array(one)[:, None] for one in ([True, False, True, True], [False, True, True, False])]
OTHER = np.array([[True], [True], [False], [False]])


@pytest.mark.parametrize(
    "is_made, words", [(True, ["local"] * 3), (False, ["whole whole", *["differs, whole whole"] * 2])]
)
def test_a_mask_beside_one_of_the_rank_alone_is_local_too(tmp_path, is_made, words):
    ranks = [[*[call("clip", [np.arange(3)], [MASKS[at]])] * is_made,
              call("logical_and", [MASKS[at] if is_made else OTHER, MASKS[1 - at]], [MASKS[at] & MASKS[1 - at]])]
             for at in (0, 1)]  # fmt: skip
    golden = [call("logical_and", [OTHER, ~MASKS[0]], [OTHER & ~MASKS[0]])]
    assert [*decisions(searched(tmp_path, ranks, golden)).values()] == words


@pytest.mark.parametrize("prefix, words", [("Torch", "sum whole"), ("Module", "differs, whole whole, illegal")])
def test_a_module_reads_no_partial_sum(tmp_path, prefix, words):
    own = [(X[:, part], W[:, part]) for part in (np.s_[:3], np.s_[3:])]
    ranks = [[call("linear", both, [part]), call("identity", [part], [], prefix=prefix)] for both, part in zip(own, P)]
    golden = [call("linear", [X, W], [sum(P)]), call("identity", [sum(P)], [], prefix=prefix)]
    assert decisions(searched(tmp_path, ranks, golden))["identity.0 in 0"] == words


@pytest.mark.parametrize("prefix, words", [("Torch", "sum whole"), ("Module", "local")])
def test_masks_of_the_ranks_may_leave_a_part_of_a_sum(tmp_path, prefix, words):
    """A module reduces what it computes."""
    masks = [np.arange(24).reshape(4, 6) % 2 == at for at in (0, 1)]
    parts = [np.where(mask, X, 0) for mask in masks]
    ranks = [[call("ne", [OTHER], [mask]), call("where", [mask, X], [part], prefix=prefix),
              shared("all_reduce", part, X), call("sin", [X], [Y])] for mask, part in zip(masks, parts)]  # fmt: skip
    golden = [call("where", [np.ones((4, 6), bool), X], [X], prefix=prefix), call("sin", [X], [Y])]
    found = decisions(searched(tmp_path, ranks, golden))
    assert (found["where.0 in 0"], found["where.0 in 1"], found["where.0 out 0"]) == ("local", "whole whole", words)


def test_one_count_among_the_parts_of_ranks_is_local(tmp_path):
    ranks = [[call("bincount", [X[own]], [np.array([count])])] for own, count in ((UPPER, 3), (LOWER, 4))]
    found = decisions(searched(tmp_path, ranks, [call("bincount", [X], [np.array([7])])]))
    assert found == {"bincount.0 in 0": "shard(0) whole", "bincount.0 out 0": "local"}


# Gradients of tables

TOKENS, TABLE, G = np.array([3, 1, 0, 2, 3]), numbers(4, 6, seed=12), numbers(5, 6, seed=76)


def table_gradient(tokens, gradient, rows=4):
    found = np.zeros((rows, 6), np.float32)
    np.add.at(found, tokens, gradient)
    return found


def part_of_the_table(at):
    """A lookup in half of the table, of tokens as numbers in this half, and its gradient."""
    outside = at != TOKENS // 2
    kept, table = np.where(outside, 0, TOKENS - 2 * at), TABLE[2 * at : 2 * at + 2]
    own, masked = np.where(outside[:, None], 0, table[kept]), np.where(outside[:, None], 0, G)
    return [
        call("where", [TOKENS], [kept]),
        call("embedding", [kept, table], [table[kept]]),
        call("masked_fill", [table[kept]], [own]),
        shared("all_reduce", own, TABLE[TOKENS]),
        call("sin", [TABLE[TOKENS]], [TABLE[TOKENS] * 2]),
        call("sin", [Y], [G], phase="backward"),
        call("masked_fill", [G], [masked], phase="backward"),
        call("embedding", [masked], [table_gradient(kept, masked, 2)], phase="backward"),
    ]


def part_of_the_tokens(at):
    """A lookup of some tokens in another order, and its gradient."""
    own = TOKENS[3 * at : 3 * at + 3]
    other, gradient = own[::-1].copy(), G[3 * at : 3 * at + 3][::-1].copy()
    return [
        call("flip", [own], [other]),
        call("embedding", [other, TABLE], [TABLE[other]]),
        call("embedding", [gradient], [table_gradient(other, gradient)], phase="backward"),
    ]


@pytest.mark.parametrize(
    "part, table, gradient",
    [(part_of_the_table, "shard(0) whole", "shard(0) whole"), (part_of_the_tokens, "whole whole", "sum whole")],
)
def test_the_gradient_of_a_table_in_which_ranks_look_up_their_own_indices(tmp_path, part, table, gradient):
    """The gradient that arrives is the rank's own."""
    lookup = call("embedding", [TOKENS, TABLE], [TABLE[TOKENS]])
    between = [call("sin", [TABLE[TOKENS]], [TABLE[TOKENS] * 2]), call("sin", [Y], [G], phase="backward")]
    golden = [lookup, *between * (part is part_of_the_table),
              call("embedding", [G], [table_gradient(TOKENS, G)], phase="backward")]  # fmt: skip
    found = decisions(searched(tmp_path, [part(0), part(1)], golden))
    assert (found["embedding.0 in 1"], found["embedding.0 out 0"]) == (table, "local")
    assert (found["embedding.0 back in 0"], found["embedding.0 back out 0"]) == ("local", gradient)


def test_a_gradient_of_what_all_ranks_have_whole_is_no_partial_sum(tmp_path):
    parts = [H * 0.3 + U[:4, :1], H * 0.7 - U[:4, :1]]
    ranks = [[SINE, call("sin", [Y], [part[:, :6]], phase="backward")] for part in parts]
    found = decisions(searched(tmp_path, ranks, [SINE, call("sin", [Y], [H[:, :6]], phase="backward")]))
    assert found["sin.0 back out 0"] == "differs, whole whole"


# Experts

TOKEN, START, GRADIENT = (numbers(6, 6, seed=71 + at) for at in range(3))
EXPERTS = [numbers(6, 6, seed=74 + at) for at in range(2)]
OF_EXPERTS = [TOKEN @ one.T for one in EXPERTS]
FIRST = START + OF_EXPERTS[0]
BOTH = FIRST + OF_EXPERTS[1]


def expert(at, number=0):
    return call("linear", [TOKEN, EXPERTS[at]], [OF_EXPERTS[at]], number)


def expert_gradient(at, number=0):
    return call("linear", [GRADIENT], [GRADIENT @ EXPERTS[at], GRADIENT.T @ TOKEN], number, "backward")


HEAD, LOSS = call("tanh", [START], [TOKEN]), call("sin", [Y], [GRADIENT], phase="backward")
GOLDEN = [
    HEAD,
    expert(0),
    call("add", [START, OF_EXPERTS[0]], [FIRST]),
    expert(1, 1),
    call("add", [FIRST, OF_EXPERTS[1]], [BOTH], 1),
    call("sin", [BOTH], [np.sin(BOTH)]),
]
BACKWARD = [
    LOSS,
    call("add", [GRADIENT], [GRADIENT, GRADIENT], 1, "backward"),
    expert_gradient(1, 1),
    call("add", [GRADIENT], [GRADIENT, GRADIENT], 0, "backward"),
    expert_gradient(0),
]


def of_expert(at, is_reduced=True, added=()):
    """One expert of two, added to the first tokens on the first rank, to zeros on the other."""
    start = np.zeros_like(START) if at else START
    own = start + OF_EXPERTS[at]
    read = BOTH if is_reduced else own
    return [
        HEAD,
        expert(at),
        call("add", [start, OF_EXPERTS[at]], [own]),
        *([shared("all_reduce", own, BOTH)] if is_reduced else []),
        call("sin", [read], [np.sin(read)]),
        *added,
    ]


@pytest.mark.parametrize("is_reduced, words", [(True, "whole whole"), (False, "differs, whole whole, illegal")])
def test_the_sum_over_the_experts_of_a_rank_is_local_and_must_be_reduced(tmp_path, is_reduced, words):
    found = decisions(searched(tmp_path, [of_expert(at, is_reduced) for at in (0, 1)], GOLDEN))
    assert (found["add.1 in 0"], found["add.1 in 1"], found["add.1 out 0"]) == ("local", "whole", "local")
    assert found["add.0 in 0"] == found["add.0 out 0"] == "whole" and found["sin.0 in 0"] == words


def backward_of_expert(at, *gradients):
    return of_expert(at, added=[LOSS, call("add", [GRADIENT], [*gradients], 0, "backward"), expert_gradient(at)])


@pytest.mark.parametrize(
    "golden, own, words",
    [
        (GRADIENT, (), "whole"),
        (-GRADIENT, (), "shape"),  # of another tensor than the one that arrives
        (np.ones_like(GRADIENT), (), "shape"),
        (GRADIENT, (2 * GRADIENT + 1,), "differs, whole"),  # the rank has a gradient of its own
    ],
)
def test_the_gradient_of_a_sum_that_begins_with_zeros_on_a_rank_is_the_one_that_arrives(tmp_path, golden, own, words):
    ranks = [backward_of_expert(at, GRADIENT, *own) for at in (0, 1)]
    backward = [LOSS, call("add", [GRADIENT], [GRADIENT, golden], 1, "backward"), *BACKWARD[2:]]
    found = decisions(searched(tmp_path, ranks, [*GOLDEN, *backward]))
    assert found["add.1 back out 0"] == "whole" and found["add.1 back out 1"] == words
    assert found["add.0 back out 1"] == ("differs, whole" if own else "shape")  # no sum that runs


def test_a_sum_over_experts_that_a_rank_hands_on_agrees(tmp_path):
    """To the rank of the next expert."""
    shares = [call("add", [START, OF_EXPERTS[0]], [FIRST]), call("add", [FIRST, OF_EXPERTS[1]], [BOTH])]
    ranks = [[HEAD, expert(at), shares[at], ("Distributed.broadcast.0.forward", [BOTH], [BOTH], (0, 1)), GOLDEN[-1]]
             for at in (0, 1)]  # fmt: skip
    found = decisions(searched(tmp_path, ranks, GOLDEN))
    assert found["add.1 in 0"] == found["add.1 out 0"] == "whole"


# Masks beside parts


def recorded(dtype, *figures, shape=(4, 1)):
    return Recorded(Statistics(*figures), shape, dtype)


@pytest.mark.parametrize(
    "golden, own, words",
    [
        ((9.0, 0.0), [(5.0, 0.0), (5.0, 0.0)], "local"),  # extremes alone: they may differ
        ((9.0, 0.0), [(5.0, 5.0), (5.0, 5.0)], "differs"),
        ((9.0, 0.0), [(5.0, 5.0), (4.0, 4.0)], "local"),
        ((9.0, 0.0, 3.0), [(5.0, 0.0, 1.0), (5.0, 0.0, 1.0)], "differs"),
        ((9.0, 0.0, 3.0), [(5.0, 0.0, 1.0), (5.0, 0.0, 2.0)], "local"),
        ((9.0, 0.0, None, 3.0), [(5.0, 0.0, None, 1.0), (5.0, 0.0, None, 1.0)], "differs"),
    ],
)
def test_masks_of_which_statistics_are_recorded(tmp_path, golden, own, words):
    def floats(array):
        figures = (float(of(array)) for of in (np.max, np.min, np.mean, np.linalg.norm))
        return recorded("float32", *figures, shape=array.shape)

    def calls(x, figures):
        figures = (*figures, None, None)[:4]
        return [call("sin", [floats(X)], [floats(x)]),
                call("mul", [floats(x), recorded("int64", *figures)], [floats(x)])]  # fmt: skip

    ranks = [calls(x, figures) for x, figures in zip((H[:, :4], H[:, 4:]), own)]
    found = decisions(searched(tmp_path, ranks, calls(H, golden), values=False))
    assert found["mul.0 in 0"] == "shard(1) whole" and found["mul.0 in 1"].split(",")[0] == words


ROWS = [np.arange(6)[None] % 3 == at for at in range(3)]


@pytest.mark.parametrize(
    "inputs, golden, words",
    [
        ([[X[UPPER]], [X[LOWER]]], [X], "local"),  # parts that no operator wrote
        ([[X], [X]], [X], "differs"),
        ([[np.arange(8).reshape(4, 2)[UPPER], X], [np.arange(8).reshape(4, 2)[LOWER], X]],
         [np.arange(8).reshape(4, 2), X], "differs"),  # parts of numbers
        ([[P[0], W], [P[1], W]], [sum(P), W], "local"),
    ],
)  # fmt: skip
def test_a_mask_of_each_rank_is_local_beside_a_part_of_floats(tmp_path, inputs, golden, words):
    """That may also be a partial sum."""
    is_sum = golden[0] is sum(P) or golden[0].shape == P[0].shape
    own = [(X[:, part], W[:, part]) for part in (np.s_[:3], np.s_[3:])]
    before = [[call("linear", both, [part])] * is_sum for both, part in zip(own, P)]
    ranks = [[*some, call("mul", [*read, ROWS[at]], [])] for at, (some, read) in enumerate(zip(before, inputs))]
    whole = [call("linear", [X, W], [sum(P)])] * is_sum
    found = decisions(searched(tmp_path, ranks, [*whole, call("mul", [*golden, ROWS[2]], [])]))
    assert found[f"mul.0 in {len(golden)}"].split(",")[0] == words


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("is_made, words", [(True, "local"), (False, "differs")])
def test_a_mask_of_each_rank_is_local_beside_what_the_rank_alone_computes(tmp_path, is_made, words, phase):
    """In the forward pass."""
    sine = call("sin", [X], [Y])
    ranks = [[sine, *[call("tan", [Y], [U])] * is_made, call("mul", [U, ROWS[at]], [], phase="forward"),
              call("mul", [U, ROWS[at]], [], phase="backward")] for at in (0, 1)]  # fmt: skip
    golden = [sine, call("mul", [U, ROWS[2]], []), call("mul", [U, ROWS[2]], [], phase="backward")]
    found = decisions(searched(tmp_path, ranks, golden))
    slot = "mul.0 in 1" if phase == "forward" else "mul.0 back in 1"
    assert found[slot].split(",")[0] == (words if phase == "forward" else "local" if is_made else "differs")


def test_a_mask_of_a_backward_pass_differs(tmp_path):
    """Beside parts of a gradient."""
    halves = H[:, :4], H[:, 4:]
    ranks = [[call("sin", [X], [half]), call("mul", [half, MASKS[0]], [half]),
              call("mul", [half, MASKS[at]], [half], phase="backward")] for at, half in enumerate(halves)]  # fmt: skip
    golden = [call("sin", [X], [H]), call("mul", [H, MASKS[0]], [H]),
              call("mul", [H, OTHER], [H], phase="backward")]  # fmt: skip
    assert decisions(searched(tmp_path, ranks, golden))["mul.0 back in 1"].startswith("differs")


def test_a_mask_that_is_split_beside_a_part_differs(tmp_path):
    masks = [np.array(one)[:, None] for one in ([True, False], [False, True])]
    ranks = [[call("mul", [X[own], mask], [])] for own, mask in zip((UPPER, LOWER), masks)]
    found = decisions(searched(tmp_path, ranks, [call("mul", [X, ~np.concatenate(masks)], [])]))
    assert found["mul.0 in 1"].startswith("differs, shard(0")


def test_a_loss_of_what_all_ranks_hold_differs_beside_numbers_of_the_rank(tmp_path):
    """Rank 1 turns the numbers of classes; no rank has a loss of its own of whole scores."""
    wrong = call("roll", [IDS], [np.roll(IDS, 1)])
    ranks = [[*[wrong] * at, call("cross_entropy", [X[:3], np.roll(IDS, at)], [np.float32(1.3 + at)])] for at in (0, 1)]
    found = decisions(searched(tmp_path, ranks, [call("cross_entropy", [X[:3], IDS], [np.float32(1.3)])]))
    assert found["cross_entropy.0 out 0"] == "differs, whole whole"


@pytest.mark.parametrize("size, words", [(1, "sum"), (4, "differs, whole")])
def test_a_gradient_of_a_number_that_arrives_from_several_operators_is_a_sum(tmp_path, size, words):
    parts = [numbers(size, seed=95 + at) for at in (0, 1)]
    made = numbers(size, seed=97)

    def scaled(gradient):
        return [call("exp", [made], [made * 2]), call("exp", [gradient], [gradient * 2], phase="backward")]

    ranks = [[*scaled(part), shared("all_reduce", X, Y)] for part in parts]
    found = decisions(searched(tmp_path, ranks, scaled(sum(parts))))
    assert found["exp.0 back in 0"].startswith(words)
