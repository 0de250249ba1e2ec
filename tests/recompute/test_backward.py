"""Gradients: from the saved outputs, matched with what a record may hold; UNKNOWN where nothing fits."""

import numpy as np
import pytest

from npucmp.model import ReplayVerdict
from tests.recompute.craft import Dump

pytest.importorskip("torch")

F32 = np.float32


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


X, G = normal(6, 32), normal(6, 32, seed=2)
W, B, GO = normal(10, 32, seed=3), normal(10, seed=4), normal(6, 10, seed=5)
Y = (np.exp(X) / np.exp(X).sum(-1, keepdims=True)).astype(F32)
COARSE = (Y * (1 + normal(6, 32, seed=6) * 1e-3)).astype(F32)  # a softmax that was wrong in the forward


def of_softmax(y, g):
    """Of the saved output, in numpy's float64."""
    y, g = y.astype(float), g.astype(float)
    return (y * (g - (g * y).sum(-1, keepdims=True))).astype(F32)


def of_norm(x, g, eps):
    """Without weight and bias, in numpy's float64."""
    x, g = x.astype(float), g.astype(float)
    away = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((away**2).mean(-1, keepdims=True) + eps)
    unit = away * rstd
    return (rstd * (g - g.mean(-1, keepdims=True) - unit * (g * unit).mean(-1, keepdims=True))).astype(F32)


class Both(Dump):
    """All forwards, and then all backwards."""

    def __init__(self, folder):
        super().__init__(folder)
        self.later = []

    def both(self, name, args, out, given, gradients, kwargs=None):
        self.add(f"{name}.forward", args, [out], kwargs)
        self.later.append((f"{name}.backward", given, gradients))

    def rows(self):
        for one in self.later:
            self.add(*one)
        return super().rows()


def linear(x):
    return (x.astype(float) @ W.T.astype(float) + B).astype(F32)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The backward rows of one dump, by the name of the call."""
    dump = Both(tmp_path_factory.mktemp("backward"))
    product, bias = (GO.astype(float) @ W).astype(F32), GO.sum(0)
    weight = (GO.T.astype(float) @ X).astype(F32)
    dim = {"dim": -1}
    norm = ((X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5)).astype(F32)
    dump.both("Functional.softmax.0", [X], Y, [G], [of_softmax(Y, G)], dim)
    dump.both("Functional.softmax.1", [X], COARSE, [G], [of_softmax(COARSE, G)], dim)  # right, of what was saved
    dump.both("Functional.softmax.2", [X], Y, [G], [(of_softmax(Y, G) * 1.001).astype(F32)], dim)
    dump.both("Functional.softmax.3", [X], Y, [G], [normal(6, 32, seed=9)], dim)  # a softmax is one node
    part = of_softmax(Y, G)
    part[:2] *= -5
    dump.both("Functional.softmax.4", [X], Y, [G], [part], dim)  # far off, but where it is not it is of this node
    dump.both("Functional.linear.0", [X, W, B], linear(X), [GO], [bias, product, weight.T.copy()])
    dump.both("Functional.linear.1", [X, W, B], linear(X), [GO], [bias, (product * 1.01).astype(F32), weight.T.copy()])
    dump.both("Functional.linear.2", [X[None], W, B], linear(X)[None], [GO[None]], [GO])  # the incoming one
    dump.both("Functional.layer_norm.0", [X, [32]], norm, [G], [of_norm(X, G, 1e-5)])
    dump.both("Functional.layer_norm.1", [X, [32]], norm, [G], [of_norm(X, G, 1e-1)])
    dump.both("Tensor.__mul__.0", [X, 0.5], X * F32(0.5), [G], [G * F32(0.5), None])
    dump.both("Functional.relu.0", [X], np.maximum(X, 0), [G], [np.where(X > 0, G, F32(0))])
    dump.both("Functional.relu.1", [X], np.maximum(X, 0), [G], [np.where(X > -0.1, G, F32(0))])
    labels = np.arange(6) % 3
    probability = np.exp(X) / np.exp(X).sum(-1, keepdims=True)
    loss = np.array(-np.log(probability[np.arange(6), labels]).mean(), F32)
    ones = np.eye(32)[labels] / 6
    one = np.array(1, F32)
    dump.both("Functional.cross_entropy.0", [X, labels], loss, [one], [(-ones).astype(F32)])  # at its log-softmax
    dump.both("Functional.cross_entropy.1", [X, labels], loss, [one], [(probability / 6 - ones).astype(F32)])
    ties = np.array([[2, 2, 1, 0]], F32)
    for at, (first, second) in enumerate([(0, 1), (1, 0)]):  # of equal values a device may choose any
        chosen = np.array([[first, second]])
        gradient = np.zeros_like(ties)
        gradient[0, first], gradient[0, second] = G[0, :2]
        dump.add(f"Torch.topk.{at}.forward", [ties, 2], [ties[:, :2], chosen])
        dump.later.append((f"Torch.topk.{at}.backward", [G[:1, :2]], [gradient]))
    dump.add("Functional.gelu.7.backward", [G], [G])  # without its forward
    found = {}
    for row, name in zip(dump.rows(), [name for name, one in dump.data.items() for out in one["output"] if out]):
        found.setdefault(name, []).append(row)
    return found


@pytest.mark.parametrize("call, wanted", [
    ("Functional.softmax.0", ["CLEAN"]),
    ("Functional.softmax.1", ["CLEAN"]),
    ("Functional.softmax.2", ["GUILTY"]),
    ("Functional.softmax.3", ["GUILTY"]),
    ("Functional.softmax.4", ["GUILTY"]),
    ("Functional.linear.0", ["CLEAN", "CLEAN", "CLEAN"]),
    ("Functional.linear.1", ["CLEAN", "GUILTY", "CLEAN"]),
    ("Functional.linear.2", ["CLEAN"]),
    ("Functional.layer_norm.0", ["CLEAN"]),
    ("Functional.layer_norm.1", ["GUILTY"]),
    ("Tensor.__mul__.0", ["CLEAN"]),
    ("Functional.relu.0", ["CLEAN"]),
    ("Functional.relu.1", ["GUILTY"]),
    ("Functional.cross_entropy.0", ["CLEAN"]),
    ("Functional.cross_entropy.1", ["CLEAN"]),
    ("Torch.topk.0", ["CLEAN"]),
    ("Torch.topk.1", ["CLEAN"]),
    ("Functional.gelu.7", ["UNKNOWN"]),
])  # fmt: skip
def test_verdicts(rows, call, wanted):
    assert [row.verdict.value for row in rows[f"{call}.backward"]] == wanted


def test_the_forward_is_blamed_for_its_own_error_alone(rows):
    (forward,), (backward,) = (rows[f"Functional.softmax.1.{phase}"] for phase in ("forward", "backward"))
    assert (forward.verdict, backward.verdict) == (ReplayVerdict.GUILTY, ReplayVerdict.CLEAN)


def test_reasons(rows):
    assert rows["Functional.gelu.7.backward"][0].status == "no data"
    assert "holds the incoming gradient" in rows["Functional.linear.2.backward"][0].explanation


def backward_row(folder, name, args, out, given, gradients, kwargs=None):
    dump = Both(folder)
    dump.both(name, args, out, given, gradients, kwargs)
    return dump.rows()[1]


SOFTSIGN = (G / (1 + np.abs(X)) ** 2).astype(F32)  # two nodes: abs and add, and a quotient
SHRUNK = np.where(np.abs(X) > 1.5, X, F32(0))  # one node, of which numpy has no formula


@pytest.mark.parametrize("factor", [2.0, 0.5, -1.0, 1.5])
def test_a_multiple_of_a_gradient_is_a_wrong_gradient(tmp_path, factor):
    """Whatever the nodes of the call: here one of several."""
    row = backward_row(tmp_path, "Functional.softsign.0", [X], (X / (1 + np.abs(X))).astype(F32), [G],
                       [SOFTSIGN * F32(factor)])  # fmt: skip
    assert row.verdict is ReplayVerdict.GUILTY


def test_a_gradient_of_another_formula(tmp_path):
    """Wrong where the call is one autograd node, for numpy's table or for torch; else another node may hand it on."""
    without_sum = (Y * G).astype(F32)
    row = backward_row(tmp_path / "1", "Functional.softmax.0", [X], Y, [G], [without_sum * (1 + X)], {"dim": -1})
    assert row.verdict is ReplayVerdict.GUILTY
    other = normal(6, 32, seed=9)
    row = backward_row(tmp_path / "2", "Functional.hardshrink.0", [X, 1.5], SHRUNK, [G], [other])
    assert row.verdict is ReplayVerdict.GUILTY
    row = backward_row(tmp_path / "3", "Functional.softsign.0", [X], (X / (1 + np.abs(X))).astype(F32), [G], [other])
    assert (row.status, row.verdict) == ("another autograd node", ReplayVerdict.UNKNOWN)


def test_a_negated_gradient_is_not_that_of_the_other_operand(tmp_path):
    """Of a difference: the gradients of one node stand in their places."""
    row = backward_row(tmp_path, "Torch.sub.0", [X, Y], X - Y, [G], [-G, -G])
    assert row.verdict is ReplayVerdict.GUILTY


def test_the_gradient_that_came_in_may_be_that_of_a_view_or_a_cast(tmp_path):
    row = backward_row(tmp_path, "Functional.hardshrink.0", [X, 1.5], SHRUNK, [G], [G])
    assert row.verdict is ReplayVerdict.UNKNOWN


def test_what_is_written_in_place_is_no_noise(tmp_path):
    """Gradients of a minimum, in 16 bits: where the other operand is the smaller they are zero, by masked_fill_."""
    x, y, g = (one.astype(np.float16) for one in (X, normal(6, 32, seed=7), G))
    gradients = [np.where(x < y, g * np.float16(2), np.float16(0)), np.where(x < y, np.float16(0), g)]
    row = backward_row(tmp_path, "Torch.minimum.0", [x, y], np.minimum(x, y), [g], gradients)
    assert row.verdict is ReplayVerdict.GUILTY


@pytest.mark.parametrize("engine", ["torch", "numpy"])
def test_the_limit_of_a_clamp_may_be_rounded_to_the_type_of_its_values(tmp_path, engine):
    """0.1 is 0.09998 in float16: such values have a gradient only where the limit was rounded too."""
    x = np.full((6, 32), 0.1, np.float16)
    x[0], x[1] = 5, -5
    g, dump = G.astype(np.float16), Both(tmp_path)
    for at, dx in enumerate((np.where(x > 1, g, 0), np.where(x < -1, 0, g), np.where(x > 1, 0, g))):
        dump.both(f"Torch.clamp.{at}", [x], np.maximum(x, np.float16(0.1)), [g], [dx.astype(np.float16)], {"min": 0.1})
    verdicts = [row.verdict for row in Dump.rows(_written(dump), engine=engine)]
    assert verdicts == [ReplayVerdict.CLEAN] * 5 + [ReplayVerdict.GUILTY]


def _written(dump):
    for one in dump.later:
        dump.add(*one)
    return dump
