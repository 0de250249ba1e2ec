"""What the walk over a golden's operators makes of indices, experts, gradients and updates that ranks hold."""

from __future__ import annotations

import numpy as np
import pytest

from tests.align.rank_craft import numbers
from tests.align.rank_networks import H, X, Y, call, decisions, searched, shared

# Indices and masks of a rank

IDS = np.array([3, 1, 0])


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


# Masks beside parts


def test_a_mask_of_a_backward_pass_differs(tmp_path):
    """Beside parts of a gradient."""
    halves = H[:, :4], H[:, 4:]
    ranks = [[call("sin", [X], [half]), call("mul", [half, MASKS[0]], [half]),
              call("mul", [half, MASKS[at]], [half], phase="backward")] for at, half in enumerate(halves)]  # fmt: skip
    golden = [call("sin", [X], [H]), call("mul", [H, MASKS[0]], [H]),
              call("mul", [H, OTHER], [H], phase="backward")]  # fmt: skip
    assert decisions(searched(tmp_path, ranks, golden))["mul.0 back in 1"].startswith("differs")


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
