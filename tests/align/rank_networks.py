"""Networks of few operators on one rank and on several: calls with their values, and the search of placements."""

from __future__ import annotations

import numpy as np

from npucmp.model import Statistics
from npucmp.relations.ranks.placement_search import PlacementSearch
from npucmp.relations.ranks.rank_partners import RankPartners
from tests.align.craft import Recorded
from tests.align.rank_craft import numbers, rank_of


def searched(folder, ranks, golden, values=True, **more):
    runs = {at: rank_of(folder / f"{at}", calls, at) for at, calls in enumerate(ranks)}
    return PlacementSearch(RankPartners(runs, rank_of(folder / "golden", golden), **more), values)


def recorded(array):
    figures = (float(of(array)) for of in (np.max, np.min, np.mean, np.linalg.norm))
    return Recorded(Statistics(*figures), array.shape)


def by_statistics(calls):
    return [(name, [recorded(one) for one in inputs], [recorded(one) for one in outputs], *group)
            for name, inputs, outputs, *group in calls]  # fmt: skip


def decisions(search):
    """What was decided of each tensor: the state if it does not agree, the placements, what is wrong with them."""
    found = {}
    for (name, slot), one in search.found.items():
        words = [] if one.state == "agrees" else [one.state]
        words += [] if one.placements is None else [" ".join(each.words for each in one.placements)]
        words += ["illegal"] * one.illegal + ["proven"] * one.proven
        words += [f"{one.fit.scale:g} times"] if one.fit is not None and one.fit.scale != 1.0 else []
        short = name.split(".", 1)[1].replace(".forward", "").replace(".backward", " back")
        found[f"{short} {slot.replace('put:', ' ')}"] = ", ".join(words)
    return found


def call(kind, inputs, outputs, number=0, phase="forward", prefix="Torch"):
    return f"{prefix}.{kind}.{number}.{phase}", inputs, outputs


def shared(kind, *tensors, group=(0, 1)):
    return f"Distributed.{kind}.0.forward", [tensors[0]], [tensors[-1]], group


# Tensor parallelism

X, W, V, B = numbers(4, 6, seed=1), numbers(8, 6, seed=2), numbers(5, 8, seed=3), numbers(4, 5, seed=4)
H = X @ W.T
R = np.maximum(H, 0)
Y = R @ V.T
Z = Y + B


def layer(w, v, y, own=np.s_[:], fault="", z=Z):
    """linear, relu, linear, add: the first product is split by columns, the second by rows of its weight."""
    h, r = H[:, own], R[:, own]
    return [
        call("linear", [X, w], [h]),
        call("relu", [h], [r]),
        call("linear", [r, v], [y], 1),
        *([] if fault == "not reduced" or y is Y else [shared("all_reduce", y, Y)]),
        call("add", [y if fault == "not reduced" else Y, B], [y + B if fault == "not reduced" else z]),
    ]


def tensor_parallel(fault=""):
    halves = [np.s_[:4], np.s_[4:]]
    parts = [R[:, own] @ V[:, own].T for own in halves]
    return [layer(W[own], V[:, own], part, own, fault) for own, part in zip(halves, parts)]


# Gradients

GZ = numbers(4, 5, seed=9)
GR = GZ @ V
GH = GR * (H > 0)
GX, GW, GV = GH @ W, GH.T @ X, GZ.T @ R


def backward(own, gx, scale=1.0):
    """The backward pass of a layer; gradients of the weights of a rank are those of its part."""
    return [
        call("add", [GZ * scale], [GZ * scale], phase="backward"),
        call("linear", [GZ * scale], [GR[:, own] * scale, GV[:, own] * scale], 1, "backward"),
        call("relu", [GR[:, own] * scale], [GH[:, own] * scale], phase="backward"),
        call("linear", [GH[:, own] * scale], [gx * scale, GW[own] * scale], phase="backward"),
    ]


def trained(fault="", scale=1.0):
    halves = [np.s_[:4], np.s_[4:]]
    parts = [GH[:, own] @ W[own] for own in halves]
    parts = [GX, GX] if fault == "reduced" else parts
    return [[*one, *backward(own, gx, scale)] for one, own, gx in zip(tensor_parallel(), halves, parts)]


# Data parallelism

LABELS = numbers(4, 5, seed=11)


def batch(rows, number=0):
    """A product, a mean loss, and their gradients."""
    x, labels, w = X[rows], LABELS[rows], W[:5]
    y = x @ w.T
    loss, gradient = np.float32(((y - labels) ** 2).mean()), 2 * (y - labels) / y.size
    return [
        call("linear", [x, w], [y], number),
        call("mse_loss", [y, labels], [loss], number),
        call("mse_loss", [np.float32(1.0)], [gradient], number, "backward"),
        call("linear", [gradient], [gradient @ w, gradient.T @ x], number, "backward"),
    ]
