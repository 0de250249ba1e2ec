"""Where partial sums may stand behind a loss: gradient records, exchanges, norms, and factors of the gradients."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.layout_sizes import parse_layout
from tests.align.rank_craft import numbers, rank_of
from tests.align.rank_networks import H, W, X, Y, call, decisions, searched, shared

HALVES = [np.s_[:2], np.s_[2:]]
G, OTHER, LABELS = (numbers(4, 6, seed=80 + at) for at in range(3))
PARTS = [G * 0.4 + OTHER, G * 0.6 - OTHER]


# Records of the gradients of a module


def trained(batches, record):
    """A module, the mean loss and its gradient for each micro batch, and a record of the gradient of the weight."""
    calls, total = [], np.zeros((6, 6), np.float32)
    for at, rows in enumerate(batches):
        x, w = X[rows], W[:6]
        y = x @ w.T
        gradient = 2 * (y - LABELS[rows]) / y.size
        total += gradient.T @ x
        calls += [
            (f"Module.fc.{at}.forward", [x, w], [y]),
            call("mse_loss", [y, LABELS[rows]], [np.float32(((y - LABELS[rows]) ** 2).mean())], at),
            call("mse_loss", [np.float32(1.0)], [gradient], at, "backward"),
        ]
    return [*calls, ("Module.fc.0.gradients", [], [total if record is None else record])]


WHOLE = trained([np.s_[:]], None)[-1][2][0]
ROWS = [[np.s_[at : at + 1], np.s_[at + 1 : at + 2]] for at in (0, 2)]


@pytest.mark.parametrize(
    "records, words",
    [
        ([None, None], "sum whole, 2 times"),
        ([2 * WHOLE, 2 * WHOLE], "whole whole, 2 times"),
        ([2 * WHOLE[:3], 2 * WHOLE[3:]], "shard(0) whole, 2 times"),
        ([WHOLE[:3], WHOLE[3:]], "shard(0) whole"),  # reduced and divided within the backward pass
        ([1.5 * WHOLE[:3], 0.5 * WHOLE[3:]], "differs, shard(0) whole, 2 times"),
    ],
)
def test_a_record_of_gradients(tmp_path, records, words):
    """The gradients of the ranks are twice as large, as their loss is the mean of half of the batch."""
    ranks = [trained([rows], record) for rows, record in zip(HALVES, records)]
    found = decisions(searched(tmp_path, ranks, trained([np.s_[:]], None)))
    assert found["mse_loss.0 back out 0"] == "shard(0) whole, 2 times"
    assert found["fc.0.gradients grad:0"] == words


@pytest.mark.parametrize("records, state", [([WHOLE[:3], WHOLE[3:]], "agrees"), ([WHOLE, WHOLE], "differs")])
def test_only_a_gradient_that_is_split_over_all_ranks_may_be_divided(tmp_path, records, state):
    """The gradients of two micro batches of two ranks are four times as large."""
    ranks = [trained(rows, record) for rows, record in zip(ROWS, records)]
    search = searched(tmp_path, ranks, trained([np.s_[:]], None))
    assert search.scale == 4.0 and search.found["Module.fc.0.gradients", "grad:0"].state == state


# Factors that a loss leaves


EACH = [np.s_[at : at + 1] for at in range(4)]


@pytest.mark.parametrize("prefix, layout, rows, factors", [
    ("Module", "dp=2", HALVES, (2,)),
    ("Module", "dp=4", EACH, (4,)),
    ("Module", "tp=2,dp=2", [*HALVES[:1] * 2, *HALVES[1:] * 2], (2, 4)),
    ("Torch", "tp=2,dp=2", [*HALVES[:1] * 2, *HALVES[1:] * 2], (2,)),
])  # fmt: skip
def test_the_factors_of_gradients_behind_a_loss(tmp_path, prefix, layout, rows, factors):
    """If ranks hold copies of the loss of a module, it may have been averaged over all of them."""
    loss = [trained([own], None)[:2] for own in (np.s_[:], *rows)]
    golden, *ranks = [[one, (other[0].replace("Torch", prefix), *other[1:])] for one, other in loss]
    search = searched(tmp_path, ranks, golden, sizes=parse_layout(layout))
    gradient = rank_of(tmp_path / "op", [call("sin", [X], [X], phase="backward")]).operators[0]
    mesh = search.partners.mesh(search.golden.operators[1])
    expected = {1.0, *(float(one) for one in factors), *(1 / one for one in factors)}
    assert {*search.scales(gradient, gradient.inputs[0], mesh)} == expected


@pytest.mark.parametrize("phase, words", [("forward", "differs, mean whole"), ("backward", "differs, mean whole")])
def test_one_number_that_differs_is_a_mean_in_the_forward_pass(tmp_path, phase, words):
    """If the ranks read parts."""

    def calls(rows, number):
        some = [call("mean", [X[rows]], [np.float32(7.0)])] * (phase == "backward")
        return [*some, call("mean", [X[rows]], [number], phase=phase)]

    ranks = [calls(rows, np.float32(number)) for rows, number in zip(HALVES, (1.2, 1.8))]
    found = decisions(searched(tmp_path, ranks, calls(np.s_[:], np.float32(0.9))))
    assert found["mean.0 out 0" if phase == "forward" else "mean.0 back out 0"].startswith(words)


# Exchanges and collectives

FORWARD = [call("tanh", [X], [H]), call("sin", [H], [H * 2])]


def exchanged(rank, kind, group, phase):
    """Rows of a partial sum, which ranks exchange with neighbours."""
    near, far = rank % 2, rank // 2
    half = PARTS[far]
    own = half[HALVES[near]]
    group = {"near": (2 * far, 2 * far + 1), "all": (0, 1, 2, 3), "own": ()}[group]
    return [
        FORWARD[0],
        ("Distributed.all_reduce.0.forward", [H], [H], (near, near + 2)),
        FORWARD[1],
        (f"Distributed.{kind}.0.forward", [half], [own], *([group] if group else [])),
        call("sin" if phase == "backward" else "cos", [own], [own], phase=phase),
    ]


@pytest.mark.parametrize(
    "kind, group, phase, words",
    [
        ("all_to_all", "near", "backward", "shard(0) sum whole"),
        ("all_to_all", "all", "backward", "differs"),
        ("all_to_all", "own", "backward", "differs"),  # a group that is not recorded may be any
        ("all_gather", "near", "backward", "differs"),
        ("all_to_all", "near", "forward", "differs"),
    ],
)
def test_an_exchange_in_a_backward_pass_hands_on_partial_sums(tmp_path, kind, group, phase, words):
    """Of ranks that take no part in it."""
    golden = [*FORWARD, call("sin" if phase == "backward" else "cos", [G], [G], phase=phase)]
    ranks = [exchanged(rank, kind, group, phase) for rank in range(4)]
    found = decisions(searched(tmp_path, ranks, golden))
    assert found["sin.0 back in 0" if phase == "backward" else "cos.0 in 0"].split(", ")[0] == words


def update(gradient, is_reduced):
    """Half of a gradient, before or behind the sum over ranks."""
    read = G / 2 if is_reduced else gradient / 2
    return [
        call("sin", [X], [H]),
        call("sin", [H], [gradient], phase="backward"),
        call("mul", [gradient], [gradient / 2]),
        *([shared("all_reduce", gradient / 2, G / 2)] if is_reduced else []),
        call("sub", [X, read], [X - G / 2]),
    ]


@pytest.mark.parametrize("is_reduced, words", [(True, "sum whole"), (False, "differs, whole whole")])
def test_an_update_reads_a_partial_sum_only_before_a_collective(tmp_path, is_reduced, words):
    found = decisions(searched(tmp_path, [update(part, is_reduced) for part in PARTS], update(G, False)))
    assert found["mul.0 in 0"] == words
    assert found["sub.0 in 1"].split(", ")[0] == ("whole whole" if is_reduced else "differs")


@pytest.mark.parametrize("is_wrong, words", [(False, "whole sum whole"), (True, "differs")])
def test_a_gradient_behind_a_collective_is_a_sum_along_the_other_axes_alone(tmp_path, is_wrong, words):
    """The sum over neighbours is known; the other ranks have a part of it."""
    ranks = []
    for rank in range(4):
        near, far = rank % 2, rank // 2
        whole = PARTS[far]
        own = PARTS[far] * (0.25 + 0.5 * near) if is_wrong else whole
        ranks.append([
            call("sin", [X], [H]),
            call("sin", [H], [Y], phase="backward"),
            ("Distributed.all_reduce.0.forward", [whole / 2 + near], [own], (2 * far, 2 * far + 1)),
            call("mul", [own], [own / 2]),
            ("Distributed.all_reduce.1.forward", [own / 2], [G / 2], (near, near + 2)),
            call("sub", [X, G / 2], [X - G / 2]),
        ])  # fmt: skip
    golden = [call("sin", [X], [H]), call("sin", [H], [Y], phase="backward"), *update(G, False)[2:]]
    found = decisions(searched(tmp_path, ranks, golden))
    assert found["mul.0 in 0"].split(", ")[0] == words


# Norms


def norms(rows, is_reduced, total=None):
    """The sum of the squares of three gradients, two numbers after another."""
    own = [np.float32((one[rows] ** 2).sum()) for one in (G, OTHER, LABELS)]
    whole = own[0] + own[1] + own[2]
    return [
        call("sin", [X], [H]),
        call("sin", [H], [Y], phase="backward"),
        *(call("sum", [one[rows] ** 2], [each], at) for at, (one, each) in enumerate(zip((G, OTHER, LABELS), own))),
        call("add", [own[0], own[1]], [own[0] + own[1]]),
        call("add", [own[0] + own[1], own[2]], [whole], 1),
        *([shared("all_reduce", whole, total)] if is_reduced else []),
        call("sqrt", [total if is_reduced else whole], [np.sqrt(total if is_reduced else whole)]),
    ]


@pytest.mark.parametrize("is_reduced", [True, False])
def test_numbers_are_added_before_a_collective(tmp_path, is_reduced):
    """The root of a part is illegal; sums of parts are none."""
    golden = norms(np.s_[:], False)
    total = golden[-1][1][0]
    found = decisions(searched(tmp_path, [norms(rows, is_reduced, total) for rows in HALVES], golden))
    assert found["add.0 in 0"] == found["add.0 in 1"] == "sum whole"
    assert ("illegal" in found["sqrt.0 in 0"]) is not is_reduced


# Gradients of what all ranks have

R, V, SCALE, BIAS = numbers(4, 8, seed=90), numbers(5, 8, seed=91), numbers(5, seed=92), numbers(5, seed=93)
ARRIVED = numbers(4, 5, seed=94)


def fused(own, gradients):
    """A product, scaled and with a bias, of which ranks have a part; and gradients of what it reads."""
    part = (R[:, own] @ V[:, own].T) * SCALE
    return [
        call("mix", [R[:, own], V[:, own], SCALE], [part]),
        call("mix", [ARRIVED], gradients, phase="backward"),
    ]


def fused_gradients(own):
    scaled = ARRIVED * SCALE
    return [scaled @ V[:, own], scaled.T @ R[:, own], (ARRIVED * (R[:, own] @ V[:, own].T)).sum(0)]


def test_the_gradient_of_a_whole_factor_of_split_ones_is_a_partial_sum(tmp_path):
    columns = np.s_[:4], np.s_[4:]
    ranks = [fused(own, fused_gradients(own)) for own in columns]
    found = decisions(searched(tmp_path, ranks, fused(np.s_[:], fused_gradients(np.s_[:]))))
    assert [found[f"mix.0 back out {at}"] for at in range(3)] == ["shard(1) whole", "shard(1) whole", "sum whole"]


@pytest.mark.parametrize("outputs, words", [
    ((0, 1, 2), "differs, whole whole"),
    ((0,), "differs, whole whole"),  # only one tensor of the forward pass has its shape
    ((3,), "sum whole"),  # two have it
])  # fmt: skip
def test_gradients_of_whole_tensors_are_no_partial_sums(tmp_path, outputs, words):
    """If the shape does not show whose gradient it is, it may be."""
    inputs = [
        X,
        numbers(7, 6, seed=95),
        *[numbers(3, 3, seed=96 + at) for at in range(1 if outputs == (0, 1, 2) else 2)],
    ]
    whole = {0: G, 1: numbers(7, 6, seed=98), 2: numbers(3, 3, seed=99), 3: numbers(3, 3, seed=99)}
    noise = numbers(1, seed=79)

    def calls(share, noise):
        own = [whole[at] * share + noise for at in outputs]
        return [call("mix", inputs, [H]), call("mix", [Y], own, phase="backward")]

    ranks = [calls(0.4, noise), calls(0.6, -noise)]
    found = decisions(searched(tmp_path, ranks, calls(1.0, 0 * noise)))
    assert {found[f"mix.0 back out {at}"] for at in range(len(outputs))} == {words}


@pytest.mark.parametrize("is_reduced", [True, False])
def test_a_gradient_without_its_reduction_differs_where_an_update_reads_it_first(tmp_path, is_reduced):
    weight, gradient = numbers(5, seed=95), numbers(5, seed=96)

    def step(rows, own, is_read_whole, collective=False):
        read = gradient if is_read_whole else own
        return [
            call("mix", [X[rows], weight], [H[rows]]), call("mix", [H[rows]], [X[rows], own], phase="backward"),
            *([shared("all_reduce", own, gradient)] if collective else []),
            call("mul", [read], [read / 2]), call("sub", [weight, read / 2], [weight - read / 2]),
        ]  # fmt: skip

    ranks = [step(rows, gradient / 2 + more, is_reduced, is_reduced) for rows, more in zip(HALVES, (1, -1))]
    found = decisions(searched(tmp_path, ranks, step(np.s_[:], gradient, True)))
    assert found["mul.0 in 0"] == ("whole whole" if is_reduced else "differs, whole whole, illegal, proven")
    assert found["mul.0 out 0"] == ("whole whole" if is_reduced else "differs, whole whole")
