"""Recorded calls of PyTorch and their gradients by the numpy engine: expectations are float64 formulas of this file."""

import math

import numpy as np

from npucmp.model import ReplayVerdict
from tests.recompute.craft import Dump

F32 = np.float32


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


def rows_of(dump):
    return dump.rows(engine="numpy")


def record(dump, name, args, outputs, gradients=(), given=None, kwargs=None):
    """A forward record, and a backward record if gradients are told."""
    dump.add(f"{name}.forward", args, [np.asarray(one, F32) for one in outputs], kwargs)
    if given is not None:
        made = [None if one is None else np.asarray(one, F32) for one in gradients]
        dump.add(f"{name}.backward", [given], made)


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def layer_norm(x, weight, bias, dy, eps):
    """The result and the gradients."""
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + eps)
    normed = (x - x.mean(-1, keepdims=True)) * rstd
    scaled = dy * weight
    dx = rstd * (scaled - scaled.mean(-1, keepdims=True) - normed * (scaled * normed).mean(-1, keepdims=True))
    return normed * weight + bias, [dx, (dy * normed).sum((0, 1)), dy.sum((0, 1))]


def calls(dump, spoil=lambda name, one: one):
    """Forward and backward of several calls; `spoil` may change the first gradient of each."""
    x, dy = normal(2, 5, 8), normal(2, 5, 8, seed=2)
    wide, given = x.astype(float), dy.astype(float)
    weight, bias = normal(8, seed=3), normal(8, seed=4)

    def add(name, args, out, gradients, given=dy, kwargs=None):
        first, *rest = gradients
        record(dump, name, args, [out], [spoil(name, first), *rest], given, kwargs)

    y, gradients = layer_norm(wide, weight.astype(float), bias.astype(float), given, 1e-5)
    add("Functional.layer_norm.0", [x, [8], weight, bias, 1e-5], y, gradients)
    p = softmax(wide).astype(F32).astype(float)
    add("Functional.softmax.0", [x], p, [p * (given - (p * given).sum(-1, keepdims=True))], kwargs={"dim": -1})
    share = 1 / (1 + np.exp(-wide))
    add("Functional.silu.0", [x], wide * share, [given * share * (1 + wide * (1 - share))])
    erf = np.vectorize(math.erf)(wide / math.sqrt(2))
    density = np.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)
    add("Functional.gelu.0", [x], wide * (1 + erf) / 2, [given * ((1 + erf) / 2 + wide * density)])
    add("Tensor.__mul__.0", [x, weight], wide * weight, [given * weight, (given * wide).sum((0, 1))])
    w, b, rows, dz = normal(4, 8, seed=5), normal(4, seed=6), normal(6, 8, seed=7), normal(6, 4, seed=8)
    w64, rows64, dz64 = (one.astype(float) for one in (w, rows, dz))
    # addmm, the node that a linear of two dimensions ends in: bias, input, transposed weight
    gradients = [dz64.sum(0), dz64 @ w64, (dz64.T @ rows64).T]
    add("Functional.linear.0", [rows, w, b], rows64 @ w64.T + b, gradients, dz)
    labels = np.arange(6) % 4
    logits = normal(6, 4, seed=9).astype(float)
    shares = softmax(logits)
    loss = -np.log(shares[np.arange(6), labels]).mean()
    to_logits = 0.5 * (shares - np.eye(4)[labels]) / 6
    add("Functional.cross_entropy.0", [logits.astype(F32), labels], loss, [to_logits], np.asarray(0.5, F32))
    index, table, ds = np.array([[0, 3, 3]]), normal(5, 8, seed=10), normal(1, 3, 8, seed=11)
    back = np.zeros((5, 8))
    np.add.at(back, index, ds)
    add("Functional.embedding.0", [index, table], table[index], [back], ds)
    image, kernel, di = normal(1, 2, 4, 4), normal(3, 2, 1, 1, seed=12), normal(1, 3, 4, 4, seed=13)
    out = np.einsum("nchw,oc->nohw", image.astype(float), kernel[:, :, 0, 0].astype(float))
    dk = np.einsum("nohw,nchw->oc", di.astype(float), image.astype(float))[:, :, None, None]
    dx = np.einsum("nohw,oc->nchw", di.astype(float), kernel[:, :, 0, 0].astype(float))
    add("Functional.conv2d.0", [image, kernel], out, [dx, dk], di)
    return dump


def test_calls_and_gradients_are_clean(tmp_path):
    rows = rows_of(calls(Dump(tmp_path)))
    assert {row.status for row in rows} == {"replayed"} and {row.verdict for row in rows} == {ReplayVerdict.CLEAN}


def test_a_dropout_is_replayed_with_the_mask_of_its_own_output(tmp_path):
    x, dy = normal(40, 50), normal(40, 50, seed=2)
    kept = np.random.default_rng(3).random(x.shape) >= 0.25
    y, dx = np.where(kept, x / F32(0.75), 0), np.where(kept, dy / F32(0.75), 0)
    dump = Dump(tmp_path)
    record(dump, "Functional.dropout.0", [x, 0.25, True], [y], [dx], dy)
    record(dump, "Functional.dropout.1", [x, 0.25, True], [y], [dy / F32(0.75)], dy)
    record(dump, "Functional.dropout.2", [x, 0.5, True], [y])
    rows = rows_of(dump)
    assert [row.verdict for row in rows[:4]] == [ReplayVerdict.CLEAN] * 3 + [ReplayVerdict.GUILTY]
    assert rows[4].status == "random"
