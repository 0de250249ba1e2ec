"""Formulas of operators of graphs, against plain loops of Python."""

import math
from itertools import product

import numpy as np
import pytest

from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_inputs import OperatorInputs
from npucmp.recompute.numpy_table import line_of

U = 2.0**-24


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape)


def computed(op, inputs, shapes, source="tfdbg", seed=None, memory=1 << 30, orders=None, **attributes):
    given = OperatorInputs(dict(enumerate(map(np.asarray, inputs))), attributes, tuple(shapes), orders or {}, source)
    return line_of(op).formula(Steps(U, U, memory, seed), given), given


def one_of(op, inputs, shape, **more):
    return computed(op, inputs, [shape], **more)[0][0]


def convolution(x, w, strides, pads, dilations, groups, out):
    """NCHW, by its definition."""
    made = np.zeros((x.shape[0], w.shape[0], *out))
    for n, o, i, j in product(*map(range, made.shape)):
        first = o // (w.shape[0] // groups) * w.shape[1]
        for c, k, m in product(*map(range, w.shape[1:])):
            a, b = i * strides[0] + k * dilations[0] - pads[0], j * strides[1] + m * dilations[1] - pads[1]
            if 0 <= a < x.shape[2] and 0 <= b < x.shape[3]:
                made[n, o, i, j] += x[n, first + c, a, b] * w[o, c, k, m]
    return made


CONVOLUTIONS = [
    ((2, 3, 7, 6), (4, 3, 3, 2), (1, 1), (0, 0), (1, 1), 1, (5, 5)),
    ((2, 4, 7, 6), (6, 2, 3, 3), (2, 1), (1, 1), (1, 1), 2, (4, 6)),
    ((1, 2, 9, 8), (2, 2, 3, 3), (1, 2), (2, 2), (2, 2), 1, (9, 4)),
    ((1, 4, 5, 5), (4, 1, 3, 3), (2, 2), (1, 1), (1, 1), 4, (3, 3)),
]


def told_of(strides, pads, dilations, groups):
    return {"stride": (1, 1, *strides), "pad_list": (pads[0], pads[0], pads[1], pads[1]),
            "dilation": (1, 1, *dilations), "group": groups}  # fmt: skip


@pytest.mark.parametrize("x, w, strides, pads, dilations, groups, out", CONVOLUTIONS)
def test_convolution_and_its_gradients(x, w, strides, pads, dilations, groups, out):
    """A gradient of a function that is linear is the sum of products with the gradient that came in."""
    told, source = told_of(strides, pads, dilations, groups), "mindspore"
    x, w = normal(*x), normal(*w, seed=2)
    y = convolution(x, w, strides, pads, dilations, groups, out)
    assert np.allclose(one_of("Conv2D", [x, w], y.shape, source=source, **told), y)
    dy = normal(*y.shape, seed=3)
    dx = one_of("Conv2DBackpropInput", [dy, w], x.shape, source=source, **told)
    dw = one_of("Conv2DBackpropFilter", [dy, x], w.shape, source=source, **told)
    for at in [(0, 0, 0, 0), tuple(n - 1 for n in x.shape), tuple(n // 2 for n in x.shape)]:
        unit = np.zeros_like(x)
        unit[at] = 1
        assert math.isclose(dx[at], (convolution(unit, w, strides, pads, dilations, groups, out) * dy).sum())
    for at in [(0, 0, 0, 0), tuple(n - 1 for n in w.shape)]:
        unit = np.zeros_like(w)
        unit[at] = 1
        assert math.isclose(dw[at], (convolution(x, unit, strides, pads, dilations, groups, out) * dy).sum())


def test_pooling():
    x = normal(2, 3, 7, 6)
    told = {"kernel_size": (1, 1, 3, 2), "strides": (1, 1, 2, 2), "pad_mode": "VALID", "source": "mindspore"}
    windows = np.array([[[[x[n, c, 2 * i : 2 * i + 3, 2 * j : 2 * j + 2] for j in range(3)] for i in range(3)]
                         for c in range(3)] for n in range(2)])  # fmt: skip
    top = windows.max(axis=(-1, -2))
    assert np.array_equal(one_of("MaxPool", [x], top.shape, **told), top)
    assert np.allclose(one_of("AvgPool", [x], top.shape, **told), windows.mean(axis=(-1, -2)))
    dy = normal(*top.shape, seed=2)
    dx = np.zeros_like(x)
    for n, c, i, j in product(*map(range, top.shape)):
        k, m = np.unravel_index(windows[n, c, i, j].argmax(), (3, 2))
        dx[n, c, 2 * i + k, 2 * j + m] += dy[n, c, i, j]
    assert np.allclose(one_of("MaxPoolGrad", [x, top, dy], x.shape, **told), dx)


def test_norms():
    x, gamma, beta = normal(4, 6), normal(6, seed=2), normal(6, seed=3)
    rows = [(row - row.mean()) / math.sqrt(((row - row.mean()) ** 2).mean() + 0.25) for row in x]
    (y, mean, last), _ = computed("LayerNorm", [x, gamma, beta, -1, -1, 0.25], [(4, 6)])
    assert np.allclose(y, np.array(rows) * gamma + beta) and np.allclose(mean[:, 0], x.mean(axis=1))
    assert np.allclose(last.among[0][:, 0], x.var(axis=1))
    image, (mean, variance) = normal(2, 3, 3, 6), (normal(6, seed=4), normal(6, seed=5) ** 2)
    wanted = (image - mean) / np.sqrt(variance + 0.5) * gamma + beta
    told = {"epsilon": 0.5, "is_training": False, "data_format": "NHWC"}
    assert np.allclose(one_of("FusedBatchNormV3", [image, gamma, beta, mean, variance], image.shape, **told), wanted)
    (y, m, v), _ = computed("FusedBatchNormV3", [image, gamma, beta], [image.shape], epsilon=0.5, data_format="NHWC")
    flat = image.reshape(-1, 6)
    assert np.allclose(m, flat.mean(axis=0)) and np.allclose(v, flat.var(axis=0, ddof=1))
    assert np.allclose(y, (image - m) / np.sqrt(flat.var(axis=0) + 0.5) * gamma + beta)
    ge = one_of("BNInference", [image, mean * 2, variance * 2, np.array([2.0])], image.shape, source="cann",
                epsilon=0.5, data_format="NHWC")  # fmt: skip
    assert np.allclose(ge, (image - mean) / np.sqrt(variance + 0.5))


def test_losses():
    x, labels = normal(4, 3), np.array([0, 2, 1, 1])
    shares = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    each = -np.log(shares[range(4), labels])
    gradient = shares - np.eye(3)[labels]
    op = "SparseSoftmaxCrossEntropyWithLogits"
    assert np.allclose(one_of(op, [x, labels], (), source="mindspore"), each.mean())
    assert np.allclose(one_of(op, [x, labels], (4, 3), source="mindspore"), gradient / 4)
    (loss, back), _ = computed(op, [x, labels], [(4,), (4, 3)])
    assert np.allclose(loss, each) and np.allclose(back, gradient)
    (loss, back), _ = computed("SoftmaxCrossEntropyWithLogits", [x, np.eye(3)[labels]], [(4,), (4, 3)])
    assert np.allclose(loss, each) and np.allclose(back, gradient)
    with pytest.raises(RefusedRecord, match="out of range"):
        computed(op, [x, labels + 1], [(4,)])


X = normal(2, 3, 4)
PLAIN = [
    ("BatchMatMulV2", [X, normal(2, 5, 4)], {"adj_y": True}, np.einsum("bik,bjk->bij", X, normal(2, 5, 4))),
    ("MatMulV2", [X[0].T, normal(4, 5), normal(5)], {"transpose_x1": True}, X[0] @ normal(4, 5) + normal(5)),
    ("MatMul", [X, normal(12, 5)], {}, X.reshape(2, 12) @ normal(12, 5)),
    ("FullyConnection", [X, normal(5, 12), normal(5)], {"axis": 1}, X.reshape(2, 12) @ normal(5, 12).T + normal(5)),
    ("BiasAdd", [X[0], normal(4)], {}, X[0] + normal(4)),
    ("BiasAddGrad", [X[0]], {}, X[0].sum(axis=0)),
    ("Mean", [X, np.array([0, -1])], {"keep_dims": True}, X.mean(axis=(0, 2), keepdims=True)),
    ("ReduceSumD", [X], {"axes": (1,)}, X.sum(axis=1)),
    ("ReduceMax", [X, np.array([1])], {}, X.max(axis=1)),
    ("SoftmaxV2", [X], {"axes": (1,)}, np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)),
    ("LogSoftmax", [X], {}, X - np.log(np.exp(X).sum(axis=2, keepdims=True))),
    ("Sigmoid", [X], {}, 1 / (1 + np.exp(-X))),
    ("Rsqrt", [X**2], {}, 1 / np.abs(X)),
    ("RealDiv", [X, X[0] + 3], {}, X / (X[0] + 3)),
    ("AddN", [X, X, X], {}, 3 * X),
    ("Eltwise", [X, X], {"mode": 0}, X * X),
    ("Eltwise", [X, X], {"mode": 1, "coeff": (2.0, -0.5)}, 1.5 * X),
    ("LeakyRelu", [X], {"negative_slope": 0.5}, np.where(X > 0, X, X / 2)),
    ("Relu6", [9 * X], {}, np.minimum(np.maximum(9 * X, 0), 6)),
    ("ReluGrad", [X, -X], {}, np.where(X < 0, X, 0)),
    ("Gelu", [X], {"approximate": "none"}, X / 2 * (1 + np.vectorize(math.erf)(X / np.sqrt(2)))),
    ("ApplyMomentum", [X, X, 0.5, -X, 0.25], {}, X - 0.5 * (0.25 * X - X)),
    ("Transpose", [X, np.array([2, 0, 1])], {}, X.transpose(2, 0, 1)),
    ("GatherV2", [X, np.array([[2, 0]]), np.array(1)], {}, X[:, [[2, 0]]]),
    ("ConcatV2", [X, X[:1], np.array(0)], {}, np.concatenate([X, X[:1]])),
    ("Pack", [X, X], {"axis": 1}, np.stack([X, X], axis=1)),
    ("PadV2", [X[0], np.array([[0, 1], [2, 0]]), np.array(3.0)], {}, np.pad(X[0], ((0, 1), (2, 0)), constant_values=3)),
    ("Slice", [X, np.array([0, 1, 1]), np.array([1, -1, 2])], {}, X[:1, 1:, 1:3]),
    ("Tile", [X, np.array([1, 2, 3])], {}, np.tile(X, (1, 2, 3))),
    ("ArgMaxV2", [X, np.array(2)], {}, X.argmax(axis=2)),
    ("Select", [X > 0, X, 2 * X], {}, np.where(X > 0, X, 2 * X)),
    ("ClipByValue", [X, np.array(-0.5), np.array(0.5)], {}, np.clip(X, -0.5, 0.5)),
    ("TransData", [X], {}, X),
]  # fmt: skip


@pytest.mark.parametrize("op, inputs, told, wanted", PLAIN, ids=[case[0] for case in PLAIN])
def test_plain(op, inputs, told, wanted):
    shape = (1, *wanted.shape[1:]) if told.get("keep_dims") else wanted.shape
    got = one_of(op, inputs, shape, **told)
    assert got.size == wanted.size and np.allclose(got.reshape(wanted.shape), wanted, rtol=1e-12)


HOSTILE = [
    ("Pad", [X], {"paddings": (0, 10**9, 0, 10**9, 0, 0)}),
    ("Tile", [X], {"multiples": (10**9, 10**9, 1)}),
    ("Transpose", [X], {"perm": (0, 0, 1)}),
    ("Softmax", [X], {"axis": 3}),
    ("Softmax", [X], {"axis": "all"}),
    ("Mean", [X], {"axes": (0.5,)}),
    ("Concat", [X, X[:, :1]], {"axis": 0}),
    ("GatherV2", [X, np.array([3]), np.array(1)], {}),
    ("GatherV2", [X, np.array([-1]), np.array(1)], {}),
    ("MatMul", [X[0], X[0]], {}),
    ("BroadcastTo", [X[0]], {}),
    ("Conv2D", [normal(1, 4, 4, 1), normal(3, 3, 1, 1)], {"strides": (1, 0, 0, 1), "padding": "SAME"}),
    ("Conv2D", [normal(1, 4, 4, 1), normal(3, 3, 1, 1)], {"pads": (10**9, 0, 0, 0), "strides": (1, 1)}),
    ("MaxPool", [normal(1, 4, 4, 1)], {"ksize": (1, 4096, 4096, 1), "strides": (1, 1), "padding": "SAME"}),
    ("MaxPool", [normal(1, 4, 4, 1)], {"ksize": (1, -2, 2, 1), "strides": (1, 1), "padding": "SAME"}),
    ("Split", [X], {"split_dim": 0, "num_split": 10**8}),
    ("Eltwise", [X, X], {"mode": 7}),
    ("Pooling", [normal(1, 4, 4, 1)], {"mode": 2}),
    ("LeakyRelu", [X], {"negative_slope": float("nan")}),
]  # fmt: skip


@pytest.mark.parametrize("op, inputs, told", HOSTILE)
def test_hostile_attributes_are_refused_before_anything_is_made(op, inputs, told):
    shape = (1, 4, 4, 1) if inputs[0].ndim == 4 else (10**6, 10**6) if op == "BroadcastTo" else (2, 3, 4)
    with pytest.raises((RefusedRecord, ValueError)):
        computed(op, inputs, [shape], memory=1 << 20, **told)
