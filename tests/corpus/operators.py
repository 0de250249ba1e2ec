"""The operators of the planter's networks: what each computes, and the gradients, written out by hand.

`forward(a, *inputs, **keywords)` gets float64 arrays (int64 and bool as they are) and numbers in the order of PyTorch's
signature and returns an array or several; `backward(a, grads, inputs, outputs, keywords)` returns a gradient for each
input, None for what has none. `a` is the Arithmetic of the device; with a twin's the same lines give the exact result.
Formulas are those of PyTorch's documentation; tests/corpus/against_torch.py holds them against torch.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Sequence

import numpy as np

from tests.corpus.device import Arithmetic, Array

Inputs = Sequence[Any]


class Operator:
    """autocast: "half", "single" or "" (the widest of its inputs). copies: moves values, computes none."""

    autocast: ClassVar[str] = ""
    copies: ClassVar[bool] = False
    backward_copies: ClassVar[bool] = False

    def forward(self, a: Arithmetic, *inputs: Any, **keywords: Any) -> Any:
        raise NotImplementedError

    def backward(self, a: Arithmetic, grads: list[Array], inputs: Inputs, outputs: list[Array], keywords: Any) -> Any:
        raise NotImplementedError


def unbroadcast(a: Arithmetic, gradient: Array, shape: tuple[int, ...]) -> Array:
    """A gradient summed over the axes that an operand was broadcast along."""
    extra = gradient.ndim - len(shape)
    axes = [*range(extra), *(k + extra for k, n in enumerate(shape) if n == 1 and gradient.shape[k + extra] != 1)]
    return a.sum(gradient, axes).reshape(shape) if axes else gradient


def _shape(x: Any) -> tuple[int, ...]:
    return np.shape(x)


def _t(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


class Linear(Operator):
    autocast = "half"

    def forward(self, a, x, w, b=None):
        y = a.matmul(x, w.T)
        return y if b is None else a.r(y + b)

    def backward(self, a, grads, inputs, outputs, keywords):
        (g,), (x, w) = grads, inputs[:2]
        flat = g.reshape(-1, g.shape[-1])
        found = [a.matmul(g, w), a.matmul(flat.T, x.reshape(-1, x.shape[-1]))]
        return [*found, a.sum(flat, 0) if inputs[2] is not None else None] if len(inputs) > 2 else found


class Matmul(Operator):
    autocast = "half"

    def forward(self, a, x, y):
        return a.matmul(x, y)

    def backward(self, a, grads, inputs, outputs, keywords):
        (g,), (x, y) = grads, inputs
        if y.ndim == 2 and x.ndim > 2:
            return [a.matmul(g, _t(y)), a.matmul(x.reshape(-1, x.shape[-1]).T, g.reshape(-1, g.shape[-1]))]
        return [unbroadcast(a, a.matmul(g, _t(y)), x.shape), unbroadcast(a, a.matmul(_t(x), g), y.shape)]


class Conv2d(Operator):
    autocast = "half"

    def forward(self, a, x, w, b=None, stride=1, padding=0, dilation=1, groups=1):
        columns, high, wide = _columns(x, w.shape, stride, padding, groups)
        y = a.matmul(w.reshape(groups, w.shape[0] // groups, -1), columns)
        y = y.reshape(len(x), w.shape[0], high, wide)
        return y if b is None else a.r(y + b[:, None, None])

    def backward(self, a, grads, inputs, outputs, keywords):
        (g,), (x, w) = grads, inputs[:2]
        stride, padding, groups = inputs[3], inputs[4], inputs[6]
        columns, _high, _wide = _columns(x, w.shape, stride, padding, groups)
        flat = g.reshape(len(x), groups, w.shape[0] // groups, -1)
        back = a.matmul(_t(w.reshape(groups, w.shape[0] // groups, -1)), flat)
        dx = _from_columns(a, back, x.shape, w.shape, stride, padding, groups)
        rows = flat.transpose(1, 2, 0, 3).reshape(groups, flat.shape[2], -1)
        dw = a.matmul(rows, columns.transpose(1, 0, 3, 2).reshape(groups, -1, columns.shape[2])).reshape(w.shape)
        return [dx, dw, None if inputs[2] is None else a.sum(g, (0, 2, 3)), None, None, None, None]


def _columns(x: Array, shape: tuple[int, ...], stride: int, padding: int, groups: int) -> tuple[Array, int, int]:
    """(batch, groups, inputs of a group × kernel, places)."""
    kh, kw = shape[2:]
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(2, 3))[:, :, ::stride, ::stride]
    high, wide = windows.shape[2:4]
    columns = windows.transpose(0, 1, 4, 5, 2, 3).reshape(len(x), groups, shape[1] * kh * kw, high * wide)
    return columns, high, wide


def _from_columns(a, back, shape, kernel, stride, padding, groups):
    n, c, h, w = shape
    kh, kw = kernel[2:]
    high, wide = (h + 2 * padding - kh) // stride + 1, (w + 2 * padding - kw) // stride + 1
    back = back.reshape(n, c, kh, kw, high, wide)
    found = np.zeros((n, c, h + 2 * padding, w + 2 * padding))
    for i in range(kh):
        for j in range(kw):
            part = (slice(None), slice(None), slice(i, i + stride * high, stride), slice(j, j + stride * wide, stride))
            found[part] = a.r(found[part] + back[:, :, i, j])
    return found[:, :, padding : padding + h, padding : padding + w]


class Embedding(Operator):
    copies = True

    def forward(self, a, ids, w):
        return w[ids]

    def backward(self, a, grads, inputs, outputs, keywords):
        found = np.zeros(inputs[1].shape)
        np.add.at(found, inputs[0].reshape(-1), grads[0].reshape(-1, found.shape[-1]))
        return [None, a.r(found)]


class LayerNorm(Operator):
    autocast = "single"
    axes: ClassVar[Any] = -1

    def _normal(self, a, x, eps):
        centred = a.r(x - a.mean(x, -1))
        scale = a.function("rsqrt", a.r(a.mean(a.r(centred * centred), -1) + eps))
        return a.r(centred * scale), scale

    def forward(self, a, x, shape, w, b, eps=1e-5):
        normal, _ = self._normal(a, x, eps)
        return a.r(a.r(normal * w) + b)

    def backward(self, a, grads, inputs, outputs, keywords):
        (g,), (x, _, w, _b, eps) = grads, inputs
        normal, scale = self._normal(a, x, eps)
        gw = a.r(g * w)
        dx = a.r(scale * a.r(gw - a.mean(gw, -1) - a.r(normal * a.mean(a.r(gw * normal), -1))))
        outer = tuple(range(x.ndim - 1))
        return [dx, None, a.sum(a.r(g * normal), outer), a.sum(g, outer), None]


class RmsNorm(Operator):
    def forward(self, a, x, shape, w, eps=1e-6):
        scale = a.function("rsqrt", a.r(a.mean(a.r(x * x), -1) + eps))
        return a.r(a.r(x * scale) * w)

    def backward(self, a, grads, inputs, outputs, keywords):
        (g,), (x, _, w, eps) = grads, inputs
        scale = a.function("rsqrt", a.r(a.mean(a.r(x * x), -1) + eps))
        gw, normal = a.r(g * w), a.r(x * scale)
        dx = a.r(scale * a.r(gw - a.r(normal * a.mean(a.r(gw * normal), -1))))
        return [dx, None, a.sum(a.r(g * normal), tuple(range(x.ndim - 1))), None]


class GroupNorm(Operator):
    autocast = "single"

    def _normal(self, a, x, groups, eps):
        flat = x.reshape(len(x), groups, -1)
        centred = a.r(flat - a.mean(flat, -1))
        scale = a.function("rsqrt", a.r(a.mean(a.r(centred * centred), -1) + eps))
        return a.r(centred * scale).reshape(x.shape), scale

    def forward(self, a, x, groups, w, b, eps=1e-5):
        normal, _ = self._normal(a, x, groups, eps)
        return a.r(a.r(normal * w[:, None, None]) + b[:, None, None])

    def backward(self, a, grads, inputs, outputs, keywords):
        (g,), (x, groups, w, _b, eps) = grads, inputs
        normal, scale = self._normal(a, x, groups, eps)
        gw = a.r(g * w[:, None, None]).reshape(len(x), groups, -1)
        flat = normal.reshape(gw.shape)
        dx = a.r(scale * a.r(gw - a.mean(gw, -1) - a.r(flat * a.mean(a.r(gw * flat), -1)))).reshape(x.shape)
        return [dx, None, a.sum(a.r(g * normal), (0, 2, 3)), a.sum(g, (0, 2, 3)), None]


class BatchNorm(Operator):
    """In training: the statistics of the batch. The running ones are inputs that the tape moves on."""

    autocast = "single"

    def _normal(self, a, x, eps):
        centred = a.r(x - a.mean(x, (0, 2, 3)))
        scale = a.function("rsqrt", a.r(a.mean(a.r(centred * centred), (0, 2, 3)) + eps))
        return a.r(centred * scale), scale

    def forward(self, a, x, mean, variance, w, b, training=True, momentum=0.1, eps=1e-5):
        normal, _ = self._normal(a, x, eps)
        return a.r(a.r(normal * w[:, None, None]) + b[:, None, None])

    def backward(self, a, grads, inputs, outputs, keywords):
        (g,), x, w, eps = grads, inputs[0], inputs[3], inputs[7]
        normal, scale = self._normal(a, x, eps)
        gw = a.r(g * w[:, None, None])
        axes = (0, 2, 3)
        dx = a.r(scale * a.r(gw - a.mean(gw, axes) - a.r(normal * a.mean(a.r(gw * normal), axes))))
        return [dx, None, None, a.sum(a.r(g * normal), axes), a.sum(g, axes), None, None, None]


def softmax(a: Arithmetic, x: Array) -> Array:
    e = a.function("exp", a.r(x - x.max(-1, keepdims=True)))
    return a.r(e / a.sum(e, -1, keepdims=True))


def softmax_gradient(a: Arithmetic, g: Array, y: Array) -> Array:
    return a.r(y * a.r(g - a.sum(a.r(g * y), -1, keepdims=True)))


class Softmax(Operator):
    autocast = "single"

    def forward(self, a, x, dim=-1, dtype=None):
        return softmax(a, x)

    def backward(self, a, grads, inputs, outputs, keywords):
        return [softmax_gradient(a, grads[0], outputs[0])]


class Attention(Operator):
    """scaled_dot_product_attention; a boolean mask says what is attended to."""

    autocast = "half"

    def _weights(self, a, q, k, mask, causal):
        scores = a.r(a.matmul(q, _t(k)) / math.sqrt(q.shape[-1]))
        if causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        elif mask is not None:
            scores = np.where(mask, scores, -np.inf)
        return softmax(a, scores)

    def forward(self, a, q, k, v, attn_mask=None, is_causal=False):
        return a.matmul(self._weights(a, q, k, attn_mask, is_causal), v)

    def backward(self, a, grads, inputs, outputs, keywords):
        (g,), (q, k, v) = grads, inputs[:3]
        weights = self._weights(a, q, k, keywords.get("attn_mask"), keywords.get("is_causal"))
        inner = softmax_gradient(a, a.matmul(g, _t(v)), weights)
        inner = a.r(inner / math.sqrt(q.shape[-1]))
        return [a.matmul(inner, k), a.matmul(_t(inner), q), a.matmul(_t(weights), g)]


class CrossEntropy(Operator):
    """Mean over the rows of (rows, classes)."""

    autocast = "single"

    def forward(self, a, x, target):
        shifted = a.r(x - x.max(-1, keepdims=True))
        log = a.function("log", a.sum(a.function("exp", shifted), -1))
        return a.mean(a.r(log - shifted[np.arange(len(x)), target]), 0, keepdims=False)

    def backward(self, a, grads, inputs, outputs, keywords):
        x, target = inputs
        found = softmax(a, x)
        found[np.arange(len(x)), target] = a.r(found[np.arange(len(x)), target] - 1.0)
        return [a.r(found * a.r(grads[0] / len(x))), None]


class MseLoss(Operator):
    autocast = "single"

    def forward(self, a, x, target):
        d = a.r(x - target)
        return a.mean(a.r(d * d), tuple(range(x.ndim)), keepdims=False)

    def backward(self, a, grads, inputs, outputs, keywords):
        x, target = inputs
        return [a.r(a.r(2.0 / x.size * grads[0]) * a.r(x - target)), None]


class Gelu(Operator):
    def _tanh(self, a, x):
        return a.function("tanh", a.r(math.sqrt(2 / math.pi) * a.r(x + a.r(0.044715 * x**3))))

    def forward(self, a, x, approximate="none"):
        inner = self._tanh(a, x) if approximate == "tanh" else a.function("erf", a.r(x / math.sqrt(2)))
        return a.r(0.5 * x * a.r(1.0 + inner))

    def backward(self, a, grads, inputs, outputs, keywords):
        x = inputs[0]
        if keywords.get("approximate") == "tanh":
            t = self._tanh(a, x)
            inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
            slope = a.r(0.5 * (1 + t) + 0.5 * x * a.r(1 - t * t) * inner)
        else:
            density = a.function("exp", a.r(-0.5 * x * x)) / math.sqrt(2 * math.pi)
            slope = a.r(0.5 * a.r(1.0 + a.function("erf", a.r(x / math.sqrt(2)))) + x * density)
        return [a.r(grads[0] * slope)]


class Relu(Operator):
    copies = True
    backward_copies = True

    def forward(self, a, x):
        return np.maximum(x, 0.0)

    def backward(self, a, grads, inputs, outputs, keywords):
        return [np.where(outputs[0] > 0, grads[0], 0.0)]


class Silu(Operator):
    def forward(self, a, x):
        return a.r(x * a.function("sigmoid", x))

    def backward(self, a, grads, inputs, outputs, keywords):
        s = a.function("sigmoid", inputs[0])
        return [a.r(grads[0] * a.r(s * a.r(1.0 + inputs[0] * a.r(1.0 - s))))]


class Sigmoid(Operator):
    def forward(self, a, x):
        return a.function("sigmoid", x)

    def backward(self, a, grads, inputs, outputs, keywords):
        y = outputs[0]
        return [a.r(grads[0] * a.r(y * a.r(1.0 - y)))]


class Tanh(Operator):
    def forward(self, a, x):
        return a.function("tanh", x)

    def backward(self, a, grads, inputs, outputs, keywords):
        return [a.r(grads[0] * a.r(1.0 - a.r(outputs[0] * outputs[0])))]


class Dropout(Operator):
    """`seed` is not part of any signature: it stands for the generator's state, and is not recorded."""

    def forward(self, a, x, p=0.5, training=True, seed=0, philox_seed=None):
        """philox_seed: the same as an argument, which is recorded."""
        seed = seed if philox_seed is None else philox_seed
        if not p:
            return x
        kept = np.random.RandomState(seed).random_sample(x.shape) >= p
        return np.where(kept, a.r(x * (1.0 / (1.0 - p))), 0.0)

    def backward(self, a, grads, inputs, outputs, keywords):
        p = inputs[1]
        if not p:
            return [grads[0], None, None]
        seed = keywords["philox_seed"] if "philox_seed" in keywords else keywords["seed"]
        kept = np.random.RandomState(seed).random_sample(grads[0].shape) >= p
        return [np.where(kept, a.r(grads[0] * (1.0 / (1.0 - p))), 0.0), None, None]


class MaxPool2d(Operator):
    """Windows that do not overlap."""

    copies = True
    backward_copies = True

    def _windows(self, x, size):
        n, c, h, w = x.shape
        parts = x.reshape(n, c, h // size, size, w // size, size).transpose(0, 1, 2, 4, 3, 5)
        return parts.reshape(n, c, h // size, w // size, size * size)

    def forward(self, a, x, kernel_size=2):
        return self._windows(x, kernel_size).max(-1)

    def backward(self, a, grads, inputs, outputs, keywords):
        x, size = inputs
        windows = self._windows(x, size)
        chosen = windows.argmax(-1)[..., None] == np.arange(size * size)
        n, c, h, w = x.shape
        found = np.where(chosen, grads[0][..., None], 0.0).reshape(n, c, h // size, w // size, size, size)
        return [found.transpose(0, 1, 2, 4, 3, 5).reshape(x.shape), None]


class AvgPool2d(Operator):
    """adaptive_avg_pool2d to one place."""

    def forward(self, a, x, output_size=1):
        return a.mean(x, (2, 3))

    def backward(self, a, grads, inputs, outputs, keywords):
        x = inputs[0]
        return [np.broadcast_to(a.r(grads[0] / (x.shape[2] * x.shape[3])), x.shape).copy(), None]


class Interpolate(Operator):
    """The nearest, twice as large."""

    copies = True

    def forward(self, a, x, scale_factor=2):
        return x.repeat(2, -1).repeat(2, -2)

    def backward(self, a, grads, inputs, outputs, keywords):
        n, c, h, w = inputs[0].shape
        return [a.sum(grads[0].reshape(n, c, h, 2, w, 2), (3, 5))]


class Add(Operator):
    def forward(self, a, x, y):
        return x + y

    def backward(self, a, grads, inputs, outputs, keywords):
        return [
            unbroadcast(a, grads[0], _shape(item)) if isinstance(item, np.ndarray) else None
            for k, item in enumerate(inputs)
        ]


class Sub(Operator):
    def forward(self, a, x, y):
        return x - y

    def backward(self, a, grads, inputs, outputs, keywords):
        x, y = inputs
        second = unbroadcast(a, -grads[0], _shape(y)) if isinstance(y, np.ndarray) else None
        return [unbroadcast(a, grads[0], _shape(x)), second]


class Mul(Operator):
    def forward(self, a, x, y):
        return x * y

    def backward(self, a, grads, inputs, outputs, keywords):
        x, y = inputs
        second = unbroadcast(a, a.r(grads[0] * x), _shape(y)) if isinstance(y, np.ndarray) else None
        return [unbroadcast(a, a.r(grads[0] * y), _shape(x)), second]


class Div(Operator):
    def forward(self, a, x, y):
        return x / y

    def backward(self, a, grads, inputs, outputs, keywords):
        x, y = inputs
        second = unbroadcast(a, a.r(-grads[0] * a.r(x / a.r(y * y))), _shape(y)) if isinstance(y, np.ndarray) else None
        return [unbroadcast(a, a.r(grads[0] / y), _shape(x)), second]


class Pow(Operator):
    autocast = "single"

    def forward(self, a, x, exponent):
        return x**exponent

    def backward(self, a, grads, inputs, outputs, keywords):
        x, exponent = inputs
        return [a.r(grads[0] * a.r(exponent * x ** (exponent - 1))), None]


class Rsqrt(Operator):
    autocast = "single"

    def forward(self, a, x):
        return a.function("rsqrt", x)

    def backward(self, a, grads, inputs, outputs, keywords):
        return [a.r(grads[0] * a.r(-0.5 * outputs[0] ** 3))]


class Exp(Operator):
    autocast = "single"

    def forward(self, a, x):
        return a.function("exp", x)

    def backward(self, a, grads, inputs, outputs, keywords):
        return [a.r(grads[0] * outputs[0])]


class Sum(Operator):
    autocast = "single"

    def forward(self, a, x, dim=-1, keepdim=False):
        return a.sum(x, dim, keepdim)

    def backward(self, a, grads, inputs, outputs, keywords):
        x, dim, keepdim = inputs[0], keywords.get("dim", -1), keywords.get("keepdim", False)
        return [np.broadcast_to(grads[0] if keepdim else np.expand_dims(grads[0], dim), x.shape).copy()]


class Mean(Operator):
    def forward(self, a, x, dim=-1, keepdim=False):
        return a.mean(x, dim, keepdim)

    def backward(self, a, grads, inputs, outputs, keywords):
        x, dim, keepdim = inputs[0], keywords.get("dim", -1), keywords.get("keepdim", False)
        g = grads[0] if keepdim else np.expand_dims(grads[0], dim)
        return [np.broadcast_to(a.r(g / (x.size / g.size)), x.shape).copy()]


class MaskedFill(Operator):
    copies = True
    backward_copies = True

    def forward(self, a, x, mask, value):
        return np.where(mask, value, x)

    def backward(self, a, grads, inputs, outputs, keywords):
        return [np.where(inputs[1], 0.0, grads[0]), None, None]


class Where(Operator):
    copies = True

    def forward(self, a, mask, x, y):
        return np.where(mask, x, y)

    def backward(self, a, grads, inputs, outputs, keywords):
        mask, x, y = inputs
        first = unbroadcast(a, np.where(mask, grads[0], 0.0), _shape(x)) if isinstance(x, np.ndarray) else None
        return [
            None,
            first,
            unbroadcast(a, np.where(mask, 0.0, grads[0]), _shape(y)) if isinstance(y, np.ndarray) else None,
        ]


class Cat(Operator):
    """The tensors are the inputs one by one; msprobe records them as a list in one."""

    copies = True
    backward_copies = True

    def forward(self, a, *parts, dim=-1):
        return np.concatenate(parts, dim)

    def backward(self, a, grads, inputs, outputs, keywords):
        dim = keywords.get("dim", -1)
        return np.split(grads[0], np.cumsum([part.shape[dim] for part in inputs])[:-1], dim)


class TopK(Operator):
    """The largest of the last axis: values and indices; the lower index first at a tie."""

    copies = True
    backward_copies = True

    def forward(self, a, x, k):
        indices = np.argsort(-x, -1, kind="stable")[..., :k]
        return np.take_along_axis(x, indices, -1), indices

    def backward(self, a, grads, inputs, outputs, keywords):
        found = np.zeros(inputs[0].shape)
        np.put_along_axis(found, outputs[1], grads[0], -1)
        return [found, None]


class Amax(Operator):
    """The largest of an axis; code that subtracts it takes it from outside of the gradient."""

    copies = True

    def forward(self, a, x, dim=-1):
        return x.max(dim)

    def backward(self, a, grads, inputs, outputs, keywords):
        return [np.zeros(inputs[0].shape)]


class Log(Operator):
    def forward(self, a, x):
        return a.function("log", x)

    def backward(self, a, grads, inputs, outputs, keywords):
        return [a.r(grads[0] / inputs[0])]


class GatherElements(Operator):
    """torch.gather along the last axis."""

    copies = True

    def forward(self, a, x, dim, index):
        return np.take_along_axis(x, index, dim)

    def backward(self, a, grads, inputs, outputs, keywords):
        x, dim, index = inputs
        found = np.zeros(x.shape)
        places = list(np.ogrid[tuple(slice(n) for n in index.shape)])
        places[dim] = index
        np.add.at(found, tuple(places), grads[0])
        return [a.r(found), None, None]


class IndexSelect(Operator):
    """Rows."""

    copies = True

    def forward(self, a, x, dim, index):
        return x[index]

    def backward(self, a, grads, inputs, outputs, keywords):
        found = np.zeros(inputs[0].shape)
        np.add.at(found, inputs[2], grads[0])
        return [a.r(found), None, None]


class IndexAdd(Operator):
    """Rows of a source added to rows of a tensor, one after the other."""

    def forward(self, a, x, dim, index, source):
        found = x.copy()
        np.add.at(found, index, source)
        return a.r(found)

    def backward(self, a, grads, inputs, outputs, keywords):
        return [grads[0], None, None, grads[0][inputs[2]]]


class Empty(Operator):
    """Memory that nobody wrote: whatever the device left there."""

    copies = True

    def forward(self, a, shape):
        seed = 0 if a.device is None else a.device.seed + a.device.block
        return np.random.RandomState(seed).standard_normal(shape)


class SetItem(Operator):
    """Rows of a tensor overwritten; what it returns is the tensor."""

    copies = True
    backward_copies = True

    def forward(self, a, x, index, value):
        found = x.copy()
        found[index] = value
        return found

    def backward(self, a, grads, inputs, outputs, keywords):
        rest = grads[0].copy()
        rest[inputs[1]] = 0.0
        return [rest, None, grads[0][inputs[1]]]


class To(Operator):
    """A cast; the tape knows the type."""

    def forward(self, a, x, dtype):
        return x

    def backward(self, a, grads, inputs, outputs, keywords):
        return [grads[0], None]


class Rope(Operator):
    """Rotary embedding of (…, length, width), the halves of the width being the pairs; part of the code that dump
    tools do not capture."""

    def forward(self, a, x, cos, sin):
        return a.r(a.r(x * cos) + a.r(turned(x) * sin))

    def backward(self, a, grads, inputs, outputs, keywords):
        _, cos, sin = inputs
        return [a.r(a.r(grads[0] * cos) - a.r(turned(grads[0] * sin))), None, None]


def turned(x: Array) -> Array:
    first, second = np.split(x, 2, -1)
    return np.concatenate([-second, first], -1)


OPERATORS: dict[str, Operator] = {
    "linear": Linear(), "matmul": Matmul(), "conv2d": Conv2d(), "embedding": Embedding(), "layer_norm": LayerNorm(),
    "rms_norm": RmsNorm(), "group_norm": GroupNorm(), "batch_norm": BatchNorm(), "softmax": Softmax(),
    "attention": Attention(), "cross_entropy": CrossEntropy(), "mse_loss": MseLoss(), "gelu": Gelu(), "relu": Relu(),
    "silu": Silu(), "sigmoid": Sigmoid(), "tanh": Tanh(), "dropout": Dropout(), "max_pool2d": MaxPool2d(),
    "avg_pool2d": AvgPool2d(), "interpolate": Interpolate(), "add": Add(), "sub": Sub(), "mul": Mul(), "div": Div(),
    "pow": Pow(), "rsqrt": Rsqrt(), "exp": Exp(), "sum": Sum(), "mean": Mean(), "masked_fill": MaskedFill(),
    "where": Where(), "cat": Cat(), "topk": TopK(), "gather": GatherElements(), "index_select": IndexSelect(),
    "index_add": IndexAdd(), "empty": Empty(), "setitem": SetItem(), "to": To(), "rope": Rope(),
    "amax": Amax(), "log": Log(),
}  # fmt: skip

CONTRACTIONS = ("linear", "matmul", "conv2d", "attention")
NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm")
NON_SMOOTH = ("relu", "max_pool2d", "masked_fill", "where", "dropout", "topk")
