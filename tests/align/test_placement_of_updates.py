"""Where partial sums may stand behind a loss: gradient records, exchanges, norms, and factors of the gradients."""

from __future__ import annotations

import numpy as np
import pytest

from tests.align.rank_craft import numbers
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


@pytest.mark.parametrize("records, state", [([WHOLE[:3], WHOLE[3:]], "agrees"), ([WHOLE, WHOLE], "differs")])
def test_only_a_gradient_that_is_split_over_all_ranks_may_be_divided(tmp_path, records, state):
    """The gradients of two micro batches of two ranks are four times as large."""
    ranks = [trained(rows, record) for rows, record in zip(ROWS, records)]
    search = searched(tmp_path, ranks, trained([np.s_[:]], None))
    assert search.scale == 4.0 and search.found["Module.fc.0.gradients", "grad:0"].state == state


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
