"""Convolutions, pooling and their gradients, computed tap by tap of a window: no more memory than the results need.

Images and weights are first transposed to NCHW; results have the order of the record.
Source: prototypes of TensorFlow, MindSpore and GE; a window of GE's `pads` is top, bottom, left, right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import MissingTensor, RefusedRecord
from npucmp.recompute.noisy_ops import Alternatives, Steps

if TYPE_CHECKING:
    from npucmp.recompute.numpy_inputs import OperatorInputs

LONGEST = 1 << 12  # maximum side of a window
TAPS = 1 << 16  # maximum number of taps of a window


class SlidingWindow(NamedTuple):
    """Sizes along height and width. `pads` are before and after each axis; `out` are the sides of the result."""

    size: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[tuple[int, int], tuple[int, int]]
    out: tuple[int, int]

    def taps(self) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
        """Each tap of the window, and the slices that it reads of a padded image."""
        for i in range(self.size[0]):
            for j in range(self.size[1]):
                starts = i * self.dilations[0], j * self.dilations[1]
                sides = [slice(at, at + (n - 1) * s + 1, s) for at, n, s in zip(starts, self.out, self.strides)]
                yield i, j, (slice(None), slice(None), *sides)

    def padded(self, x: Array, m: Steps, value: float = 0.0) -> Array:
        """A padded image that all taps can read: cut, or extended at the end, as the result needs."""
        needed = [(n - 1) * s + (k - 1) * d + 1
                  for n, s, k, d in zip(self.out, self.strides, self.size, self.dilations)]  # fmt: skip
        made = np.full((*x.shape[:2], *_roomy(m, x, needed)), value, dtype=x.dtype)
        (top, _), (left, _) = self.pads
        height, width = (max(0, min(n, side - at)) for n, side, at in zip(x.shape[2:], needed, (top, left)))
        made[:, :, top : top + height, left : left + width] = x[:, :, :height, :width]
        return made


def _roomy(m: Steps, x: Array, sides: Sequence[int]) -> Sequence[int]:
    m.room((*x.shape[:2], *sides))
    return sides


def _turned(x: Array, order: str, to: str) -> Array:
    if x.ndim != len(order) or sorted(order) != sorted(to):
        raise RefusedRecord(f"{list(x.shape)} is no {order}")
    found: Array = x.transpose([order.index(axis) for axis in to])
    return found


def _two(values: Optional[Sequence[int]], order: str, what: str, g: OperatorInputs) -> tuple[int, int]:
    """Height and width from a list of one, two or all four axes. Raises RefusedRecord for other values."""
    if values is None:
        g.doubt(f"the graph has no {what} for it, 1 was assumed")
        return 1, 1
    if len(values) == 4:
        values = [values[order.index(axis)] for axis in "HW"]
    elif len(values) == 1:
        values = [*values, *values]
    if len(values) != 2 or not all(0 < one <= LONGEST for one in values):
        raise RefusedRecord(f"{what} of {list(values)}"[:80])
    return values[0], values[1]


def _window(
    g: OperatorInputs, order: str, sides: Sequence[int], size: Sequence[int], out: Sequence[int]
) -> SlidingWindow:
    """The window over an image with these sides that gives `out`; attributes give strides, pads and dilations."""
    if not all(0 < one <= LONGEST for one in size):
        raise RefusedRecord(f"a window of {list(size)} is too large")
    if size[0] * size[1] > TAPS:
        raise RefusedRecord(f"a window of {list(size)} is too large")
    strides = _two(g.integers("strides", "stride"), order, "strides", g)
    declared = g.integers("dilations", "dilation")
    dilations = _two(declared, order, "dilations", g) if declared is not None else (1, 1)
    reach = [(k - 1) * d + 1 for k, d in zip(size, dilations)]
    total = [max(0, (n - 1) * s + r - side) for n, s, r, side in zip(out, strides, reach, sides)]
    word = (g.word("padding", "pad_mode") or "").upper()
    pads = g.integers("pads", "pad_list", "pad") or ()
    explicit = g.integers("explicit_paddings") or ()
    if word == "EXPLICIT" and len(explicit) == 8:
        found = [(explicit[2 * order.index(axis)], explicit[2 * order.index(axis) + 1]) for axis in "HW"]
    elif word == "VALID":
        found = [(0, 0), (0, 0)]
    elif word == "SAME":
        found = [(one // 2, one - one // 2) for one in total]
    elif len(pads) == 4:
        found = [(pads[0], pads[1]), (pads[2], pads[3])]
    elif len(pads) == 2:
        found = [(pads[0], pads[0]), (pads[1], pads[1])]
    else:
        found = [(one // 2, one - one // 2) for one in total]
        g.doubt("the graph has no pads for it")
    for n, side, s, r, (before, after) in zip(out, sides, strides, reach, found):
        whole, rest = divmod(side + before + after - r, s)
        if not (0 <= before < 2 * r + 1 and after >= 0 and n in (whole + 1, whole + 1 + (rest > 0))):
            raise RefusedRecord(f"a window of {list(size)} on {list(sides)} does not give {list(out)}")
    return SlidingWindow((size[0], size[1]), strides, dilations, (found[0], found[1]), (out[0], out[1]))


def _weights(g: OperatorInputs, w: Array, slot: str, order: str) -> tuple[Array, str]:
    """Weights as NCHW, and their recorded order."""
    declared = g.orders.get(slot, "")
    if len(declared) != 4 or set(declared) != set("NCHW"):
        declared = "NCHW" if order == "NCHW" else "HWCN"
    elif g.source not in ("cann",):
        declared = "NCHW" if g.source == "mindspore" else "HWCN"
    return _turned(w, declared, "NCHW"), declared


def conv2d(m: Steps, g: OperatorInputs) -> list[Any]:
    x, w = g.x(0), g.x(1, "the filter")
    order = g.order(x.ndim)
    w, _ = _weights(g, w, "input:1", order)
    x = _turned(x, order, "NCHW")
    out = dict(zip(order, g.shapes[0]))
    if len(out) != 4:
        raise RefusedRecord("the record is not a 4-dimensional image")
    groups = _groups(g, x, w)
    g.require((x.shape[0], w.shape[0], out["H"], out["W"]))
    window = _window(g, order, x.shape[2:], w.shape[2:], (out["H"], out["W"]))
    y = m.contract(lambda a, b: convolved(window.padded(a, m), b, window, groups), x, w)
    bias = g.optional(2, "bias", "b")
    if bias is not None and bias.dtype.kind == "f":
        y = m.add(y, bias.reshape(-1, 1, 1))
    return [_turned(y, "NCHW", order)]


def _groups(g: OperatorInputs, x: Array, w: Array) -> int:
    declared = g.integers("groups", "group")
    groups = declared[0] if declared else (x.shape[1] // max(1, w.shape[1]))
    if groups < 1 or groups > max(1, w.shape[0]) or w.shape[0] % groups or groups * w.shape[1] != x.shape[1]:
        raise RefusedRecord(f"{groups} groups of {w.shape[1]} channels do not match {x.shape[1]} channels")
    return groups


def convolved(x: Array, w: Array, window: SlidingWindow, groups: int) -> Array:
    n, o = x.shape[0], w.shape[0]
    made = np.zeros((n, groups, o // groups, window.out[0] * window.out[1]), dtype=np.result_type(x, w))
    for i, j, at in window.taps():
        patch = x[at].reshape(n, groups, w.shape[1], -1)
        made += np.matmul(w[:, :, i, j].reshape(groups, o // groups, w.shape[1]), patch)
    return made.reshape(n, o, *window.out)


def conv2d_input(m: Steps, g: OperatorInputs) -> list[Any]:
    """The gradient of the image."""
    dy, w = _gradient(g, "filter", 1)
    order = g.order(4)
    w, _ = _weights(g, w, "input:1", order)
    dy = _turned(dy, order, "NCHW")
    sides = dict(zip(order, g.shapes[0]))
    if len(sides) != 4 or dy.shape[1] != w.shape[0]:
        raise RefusedRecord("the record is not a 4-dimensional image")
    image = (dy.shape[0], sides["C"], sides["H"], sides["W"])
    g.require(image)
    m.room(image)
    groups = _groups(g, np.broadcast_to(np.float64(0), image), w)
    window = _window(g, order, image[2:], w.shape[2:], dy.shape[2:])
    made = m.contract(lambda one, weights: input_gradient(one, weights, window, groups, image, m), dy, w)
    return [_turned(made, "NCHW", order)]


def input_gradient(dy: Array, w: Array, window: SlidingWindow, groups: int, image: Sequence[int], m: Steps) -> Array:
    """The gradient of an image with this shape."""
    made = window.padded(np.zeros(image, dtype=dy.dtype), m)
    flat = dy.reshape(dy.shape[0], groups, dy.shape[1] // groups, -1)
    for i, j, at in window.taps():
        turned = w[:, :, i, j].reshape(groups, -1, w.shape[1]).transpose(0, 2, 1)
        made[at] += np.matmul(turned, flat).reshape(dy.shape[0], -1, *window.out)
    return _unpadded(made, window, image)


def filter_gradient(dy: Array, x: Array, window: SlidingWindow, groups: int, shape: Sequence[int], m: Steps) -> Array:
    """The gradient of weights with this shape."""
    read, (n, c) = window.padded(x, m), shape[:2]
    made = np.zeros(shape, dtype=dy.dtype)
    flat = dy.reshape(dy.shape[0], groups, n // groups, -1)
    for i, j, at in window.taps():
        patch = read[at].reshape(x.shape[0], groups, c, -1).swapaxes(-1, -2)
        made[:, :, i, j] = np.matmul(flat, patch).sum(axis=0).reshape(n, c)
    return made


def _unpadded(made: Array, window: SlidingWindow, image: Sequence[int]) -> Array:
    (top, _), (left, _) = window.pads
    found = np.zeros(image, dtype=made.dtype)
    part = made[:, :, top : top + image[2], left : left + image[3]]
    found[:, :, : part.shape[2], : part.shape[3]] = part
    return found


def conv2d_filter(m: Steps, g: OperatorInputs) -> list[Any]:
    """The gradient of the weights."""
    dy, x = _gradient(g, "input", 1)
    order = g.order(4)
    dy, x = _turned(dy, order, "NCHW"), _turned(x, order, "NCHW")
    shape = g.shapes[0]
    if len(shape) != 4:
        raise RefusedRecord("the record is not a 4-dimensional weight")
    declared = g.orders.get("output:0", "") if g.source == "cann" else ""
    weights = declared if len(declared) == 4 else ("NCHW" if g.source == "mindspore" or order == "NCHW" else "HWCN")
    sizes = dict(zip(weights, shape))
    n, c = sizes["N"], sizes["C"]
    groups = _groups(g, x, np.broadcast_to(np.float64(0), (n, c, 1, 1)))
    if dy.shape[1] != n:
        raise RefusedRecord(f"the gradient has {dy.shape[1]} channels, the weights have {n}")
    window = _window(g, order, x.shape[2:], (sizes["H"], sizes["W"]), dy.shape[2:])
    whole = (n, c, sizes["H"], sizes["W"])
    made = m.contract(lambda one, image: filter_gradient(one, image, window, groups, whole, m), dy, x)
    return [_turned(made, "NCHW", weights)]


def _gradient(g: OperatorInputs, other: str, last: int) -> tuple[Array, Array]:
    """The gradient and the other tensor of a backward convolution. MindSpore puts the gradient first, other frameworks
    put it last; sizes are integers."""
    named = g.attribute("input_names", "inputs")
    floats = [at for at in sorted(g.inputs) if g.inputs[at].dtype.kind == "f" and g.inputs[at].ndim == 4]
    if isinstance(named, tuple) and "out_backprop" in named and other in named:
        return g.x(named.index("out_backprop")), g.x(named.index(other))
    if len(floats) != 2:
        raise MissingTensor("the dump lacks one of its two tensors")
    if g.source == "mindspore":
        return g.inputs[floats[0]], g.inputs[floats[1]]
    return g.inputs[floats[1]], g.inputs[floats[0]]


def _pool(g: OperatorInputs, size: Optional[Sequence[int]] = None) -> tuple[Array, str, SlidingWindow]:
    """The image, its order and the window of a pooling; the image is the first input of a gradient too."""
    x = g.x(0)
    order = g.order(x.ndim)
    out = dict(zip(order, size or g.shapes[0]))
    if len(out) != 4:
        raise RefusedRecord("the record is not a 4-dimensional image")
    x = _turned(x, order, "NCHW")
    if g.attribute("global_pooling"):
        return x, order, SlidingWindow((x.shape[2], x.shape[3]), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1))
    declared = g.integers("ksize", "kernel_size", "window")
    if declared is None:
        raise MissingTensor("the graph has no window for it")
    if size is None:
        g.require((*x.shape[:2], out["H"], out["W"]))
    return x, order, _window(g, order, x.shape[2:], _two(declared, order, "window", g), (out["H"], out["W"]))


def max_pool(m: Steps, g: OperatorInputs) -> list[Any]:
    x, order, window = _pool(g)
    read = window.padded(x, m, -np.inf)
    m.room((*x.shape[:2], *window.out))
    made = np.full((*x.shape[:2], *window.out), -np.inf, dtype=x.dtype)
    for _, _, at in window.taps():
        np.maximum(made, read[at], out=made)
    return [_turned(made, "NCHW", order)]


def avg_pool(m: Steps, g: OperatorInputs) -> list[Any]:
    """Average over windows, with and without counting padding: frameworks differ, so the nearer result is used."""
    x, order, window = _pool(g)

    def added(one: Array) -> Array:
        read = window.padded(one, m)
        made = np.zeros((*one.shape[:2], *window.out), dtype=one.dtype)
        for _, _, at in window.taps():
            made += read[at]
        return made

    total, inside = m.contract(added, x), added(np.ones_like(x[:1, :1]))
    whole = np.full_like(inside, float(window.size[0] * window.size[1]))
    found = [_turned(m.div(total, count), "NCHW", order) for count in (inside, whole)]
    return [Alternatives(found)] if not np.array_equal(inside, whole) else [found[0]]


def pooling(m: Steps, g: OperatorInputs) -> list[Any]:
    mode = g.number("mode", usual=0.0)
    if mode not in (0, 1):
        raise RefusedRecord(f"the pooling mode {mode:g} is not supported")
    return avg_pool(m, g) if mode else max_pool(m, g)


def max_pool_grad(m: Steps, g: OperatorInputs) -> list[Any]:
    """Give the gradient to the first of equal maxima; other kernels may select another."""
    dy = g.x(2, "the gradient")
    out = g.x(1)
    x, order, window = _pool(g, out.shape)
    g.require(x.shape)
    dy, top = _turned(dy.reshape(out.shape), order, "NCHW"), _turned(out, order, "NCHW")
    made, is_tied = pooled_gradient(x, top, dy, window, m)
    if is_tied:
        g.doubt("windows hold their largest value twice")
    return [_turned(made, "NCHW", order)]


def pooled_gradient(x: Array, top: Array, dy: Array, window: SlidingWindow, m: Steps) -> tuple[Array, bool]:
    """The gradient of an image with the window maxima `top`, and whether a window holds its maximum twice."""
    read, made = window.padded(x, m, -np.inf), window.padded(np.zeros_like(x), m)
    taken, is_tied = np.zeros(top.shape, dtype=bool), False
    for _, _, at in window.taps():
        here = read[at] == top
        is_tied = is_tied or bool(np.any(here & taken & (dy != 0)))
        here &= ~taken
        made[at] += np.where(here, dy, 0.0)
        taken |= here
    if window.strides[0] < window.size[0] or window.strides[1] < window.size[1]:
        made = m.rounded(made)
    return _unpadded(made, window, x.shape), is_tied
