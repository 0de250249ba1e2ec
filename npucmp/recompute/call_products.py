"""Formulas of PyTorch's calls that sum products: linear, matmul, einsum, convolutions, pooling, attention; gradients.

Source: PyTorch 2.x documentation; ATen/native/LinearAlgebra.cpp (the last node of a product).
"""

from __future__ import annotations

import math
import string
from typing import Any, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.call_inputs import CallInputs, Node, is_float, reduced, tensor
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_formulas import softmax_of
from npucmp.recompute.numpy_windows import SlidingWindow, convolved, filter_gradient, input_gradient, pooled_gradient

# products


def linear(m: Steps, g: CallInputs, input: Array, weight: Array, bias: Optional[Array] = None) -> Any:
    out = m.matmul(np.atleast_2d(input), weight.T if weight.ndim > 1 else weight[:, None])
    out = out.reshape(*input.shape[:-1], *weight.shape[:-1])
    return out if bias is None else m.add(out, bias)


def linear_back(m: Steps, g: CallInputs, input: Array, weight: Array, bias: Optional[Array] = None) -> list[Node]:
    """Return the gradients of the call as one node, of addmm, and of the view that ends a product of more
    dimensions."""
    dy = g.dy
    rows, columns = dy.reshape(-1, weight.shape[0]), input.reshape(-1, weight.shape[-1])
    matrix = weight.reshape(-1, weight.shape[-1])
    dx, dw = m.matmul(rows, matrix).reshape(input.shape), m.matmul(rows.T, columns).reshape(weight.shape)
    db = m.sum(rows, (0,)).reshape(bias.shape) if bias is not None else None
    nodes: list[Node] = [[dx, dw, db], *([[db, dx, dw]] if db is not None else [])]
    if input.ndim > 2:
        flat = dx.reshape(columns.shape)
        nodes += [[rows], [dy], [flat, dw], *([[db, flat, dw]] if db is not None else [])]
    return nodes


def matmul(m: Steps, g: CallInputs, input: Array, other: Array) -> Any:
    a, b = tensor(input), tensor(other)
    if not a.ndim or not b.ndim:
        raise RefusedRecord("an operand of the product is a scalar")
    wide = m.matmul(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
    wide = wide[..., 0, :] if a.ndim == 1 else wide
    return wide[..., 0] if b.ndim == 1 else wide


def matmul_back(m: Steps, g: CallInputs, input: Array, other: Array) -> list[Node]:
    """Return the gradients of the call as one node, of bmm, and of the view that ends a product of more dimensions."""
    a, b, dy = input, other, g.dy
    if not dy.ndim:
        return [[m.mul(dy, b), m.mul(dy, a)]]
    wide = dy[..., None, :] if a.ndim == 1 else dy
    wide = wide[..., None] if b.ndim == 1 else wide
    left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    da = _summed(m, wide, right.swapaxes(-1, -2), left)
    db = _summed(m, left.swapaxes(-1, -2), wide, right)
    nodes: list[Node] = [[None if da is None else da.reshape(a.shape), None if db is None else db.reshape(b.shape)]]
    if dy.ndim > 2:
        nodes += [[dy.reshape(-1, *dy.shape[-2:])], [dy.reshape(-1, dy.shape[-1])], [dy]]
        nodes.append([one.reshape(-1, *one.shape[-2:]) if one is not None and one.ndim > 2 else one
                      for one in nodes[0]])  # fmt: skip
    return nodes


def _summed(m: Steps, a: Array, b: Array, like: Array) -> Any:
    """Return a product, summed over the axes along which `like` was broadcast."""
    return reduced(m, m.matmul(a, b), like)


def right_matmul(m: Steps, g: CallInputs, input: Array, other: Array) -> Any:
    return matmul(m, g, other, input)


def addmm(m: Steps, g: CallInputs, input: Array, mat1: Array, mat2: Array, beta: float = 1, alpha: float = 1) -> Any:
    out = m.matmul(mat1, mat2)
    return m.add(input if beta == 1 else m.mul(input, beta), out if alpha == 1 else m.mul(out, alpha))


def addmm_back(
    m: Steps, g: CallInputs, input: Array, mat1: Array, mat2: Array, beta: float = 1, alpha: float = 1
) -> list[Node]:
    dy = g.dy
    found = [reduced(m, dy, input), m.matmul(dy, mat2.swapaxes(-1, -2)), m.matmul(mat1.swapaxes(-1, -2), dy)]
    scaled = [one if one is None or by == 1 else m.mul(one, by) for one, by in zip(found, (beta, alpha, alpha))]
    return [scaled]


def outer(m: Steps, g: CallInputs, input: Array, other: Array) -> Any:
    return m.matmul(input.reshape(-1, 1), other.reshape(1, -1))


def outer_back(m: Steps, g: CallInputs, input: Array, other: Array) -> list[Node]:
    """Return the gradients of the call as one node, or of the product of a column and a row that replaces it. Products
    are stored before they are added."""
    column = input.reshape(-1, 1)
    with m.outside():
        parts = m.mul(g.dy, other), m.mul(g.dy, column)
    first, second = m.sum(parts[0], (1,)), m.sum(parts[1], (0,))
    return [[first, second], [first.reshape(column.shape), second]]


def einsum(m: Steps, g: CallInputs, equation: str, *operands: Any) -> Any:
    wanted, arrays = _einsum(equation, operands)
    return _contracted(m, wanted, arrays)


def _contracted(m: Steps, equation: str, arrays: Sequence[Array]) -> Any:
    return m.contract(lambda *operands: np.einsum(equation, *operands, optimize=len(operands) > 1), *arrays)


def _einsum(equation: str, operands: Sequence[Any]) -> tuple[str, list[Array]]:
    """Return the equation with its output, and the operands, which may be one list."""
    if len(operands) == 1 and isinstance(operands[0], tuple):
        operands = operands[0]
    arrays, text = [tensor(one) for one in operands], equation.replace(" ", "")
    if "..." in text or "." in text:
        raise RefusedRecord("the einsum has an ellipsis")
    left, arrow, right = text.partition("->")
    if not arrow:
        right = "".join(sorted(one for one in set(left) if one in string.ascii_letters and left.count(one) == 1))
    parts = left.split(",")
    if [len(part) for part in parts] != [one.ndim for one in arrays]:
        raise RefusedRecord(f"the einsum {equation!r:.40} does not fit its operands")
    return f"{left}->{right}", arrays


def einsum_back(m: Steps, g: CallInputs, equation: str, *operands: Any) -> list[Node]:
    """Return the gradients of two operands. No operand may repeat a letter."""
    text, arrays = _einsum(equation, operands)
    left, _, right = text.partition("->")
    parts = left.split(",")
    if len(arrays) != 2 or any(len(set(part)) != len(part) for part in (*parts, right)):
        raise RefusedRecord("einsum gradients require two operands without repeated letters")
    found: list[Optional[Array]] = []
    for at, part in enumerate(parts):
        other = parts[1 - at]
        missing = [letter for letter in part if letter not in right + other]
        core = "".join(letter for letter in part if letter not in missing)
        one = _contracted(m, f"{right},{other}->{core}", [g.dy, arrays[1 - at]])
        one = one.reshape([n if letter not in missing else 1 for letter, n in zip(part, arrays[at].shape)])
        found.append(np.broadcast_to(one, arrays[at].shape))
    return [found]


# convolutions: 1-D images become 2-D images


def _pair(value: Any, rank: int, fill: int) -> tuple[int, int]:
    numbers = value if isinstance(value, tuple) else (value,) * rank
    numbers = numbers * rank if len(numbers) == 1 else numbers
    if len(numbers) != rank or not all(isinstance(one, int) and 0 <= one < 1 << 16 for one in numbers):
        raise RefusedRecord(f"invalid window argument {value!r:.40}")
    return (fill, numbers[0]) if rank == 1 else (numbers[0], numbers[1])


def _lifted(x: Array, rank: int) -> Array:
    """Return an image as (batch, channels, height, width)."""
    if rank == 1:
        x = x[..., None, :]
    return x[None] if x.ndim == 3 else x


def _window(
    size: Sequence[int], out: Sequence[int], stride: Any, padding: Any, dilation: Any, rank: int
) -> SlidingWindow:
    strides, dilations = _pair(stride, rank, 1), _pair(dilation, rank, 1)
    if min(*strides, *dilations) < 1 or math.prod(size) > 1 << 16:
        raise RefusedRecord("invalid stride, dilation or size of a window")
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for k, d in zip(size, dilations)]
        pads = [(one // 2, one - one // 2) for one in total]
    else:
        pads = [(one, one) for one in _pair(padding, rank, 0)]
    return SlidingWindow((size[0], size[1]), strides, dilations, (pads[0], pads[1]), (out[0], out[1]))


def _sides(shape: Sequence[int], rank: int) -> tuple[int, int]:
    return (1, shape[-1]) if rank == 1 else (shape[-2], shape[-1])


def _require(window: SlidingWindow, sides: Sequence[int], ceil: bool = False) -> None:
    """Raise RefusedRecord if the window over this image does not give the recorded sides."""
    for n, side, size, s, d, (before, after) in zip(
        window.out, sides, window.size, window.strides, window.dilations, window.pads
    ):
        whole, rest = divmod(side + before + after - (size - 1) * d - 1, s)
        if n != whole + 1 and not (ceil and rest and n == whole + 2):
            raise RefusedRecord(f"a window of {list(window.size)} on {list(sides)} does not give {list(window.out)}")


def _convolution(rank: int) -> tuple[Any, Any]:
    def parts(
        g: CallInputs, input: Array, weight: Array, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> tuple[Array, Array, SlidingWindow]:
        x, w = _lifted(input, rank), weight[..., None, :] if rank == 1 else weight
        if w.ndim != 4 or not 0 < groups <= w.shape[0] or w.shape[0] % groups or groups * w.shape[1] != x.shape[1]:
            raise RefusedRecord(f"{groups} groups of {list(w.shape)} do not fit {list(x.shape)}")
        window = _window(w.shape[2:], _sides(g.shape(), rank), stride, padding, dilation, rank)
        _require(window, x.shape[2:])
        return x, w, window

    def forward(
        m: Steps, g: CallInputs, input: Array, weight: Array, bias: Optional[Array] = None, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Any:  # fmt: skip
        x, w, window = parts(g, input, weight, stride, padding, dilation, groups)
        y = m.contract(lambda a, b: convolved(window.padded(a, m), b, window, groups), x, w)
        y = y if bias is None else m.add(y, bias.reshape(-1, 1, 1))
        return y.reshape(g.shape())

    def backward(
        m: Steps, g: CallInputs, input: Array, weight: Array, bias: Optional[Array] = None, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> list[Node]:  # fmt: skip
        x, w, window = parts(g, input, weight, stride, padding, dilation, groups)
        dy = _lifted(g.dy, rank)
        terms = (window.size[0] * window.size[1], x.shape[0])  # taps, images: added in the type of the output
        dx = m.contract(lambda a, b: input_gradient(a, b, window, groups, x.shape, m), dy, w, coarse=terms[0])
        dw = m.contract(lambda a, b: filter_gradient(a, b, window, groups, w.shape, m), dy, x, coarse=terms[1])
        db = None if bias is None else m.sum(dy, (0, 2, 3))
        return [[dx.reshape(input.shape), dw.reshape(weight.shape), db]]

    return forward, backward


conv1d, conv2d = _convolution(1), _convolution(2)


# windows


def _pool(
    g: CallInputs, input: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, rank: int
) -> tuple[Array, SlidingWindow]:
    x = _lifted(input, rank)
    size = _pair(kernel_size, rank, 1)
    stride = kernel_size if stride in (None, ()) else stride
    window = _window(size, _sides(g.shape(), rank), stride, padding, dilation, rank)
    _require(window, x.shape[2:], ceil)
    return x, window


def _max_pool(rank: int) -> tuple[Any, Any]:
    def forward(
        m: Steps, g: CallInputs, input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0,
        dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        if return_indices:
            raise RefusedRecord("numpy does not recompute indices of windows")
        x, window = _pool(g, input, kernel_size, stride, padding, dilation, ceil_mode, rank)
        read = window.padded(x, m, -np.inf)
        made = np.full((*x.shape[:2], *window.out), -np.inf)
        for _, _, at in window.taps():
            np.maximum(made, read[at], out=made)
        return made.reshape(g.shape())

    def backward(
        m: Steps, g: CallInputs, input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0,
        dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> list[Node]:  # fmt: skip
        x, window = _pool(g, input, kernel_size, stride, padding, dilation, ceil_mode, rank)
        top = forward(m, g, input, kernel_size, stride, padding, dilation, ceil_mode)
        made, is_tied = pooled_gradient(x, _lifted(top, rank), _lifted(g.dy, rank), window, m)
        if is_tied:
            g.doubt("windows hold their largest value twice")
        return [[made.reshape(input.shape)]]

    return forward, backward


max_pool1d, max_pool2d = _max_pool(1), _max_pool(2)


def _avg_pool(rank: int) -> tuple[Any, Any]:
    def parts(
        m: Steps, g: CallInputs, input: Array, kernel_size: Any, stride: Any, padding: Any, ceil: bool,
        inside: bool, divisor: Optional[int],
    ) -> tuple[Array, SlidingWindow, Any]:  # fmt: skip
        x, window = _pool(g, input, kernel_size, stride, padding, 1, ceil, rank)
        ones = np.ones((1, 1, *x.shape[2:]))
        if inside and ceil:
            raise RefusedRecord("numpy does not recompute padded windows beyond the image")
        count = _added(ones, window, m) if not inside else float(window.size[0] * window.size[1])
        return x, window, float(divisor) if divisor else count

    def forward(
        m: Steps, g: CallInputs, input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Optional[int] = None,
    ) -> Any:  # fmt: skip
        x, window, count = parts(m, g, input, kernel_size, stride, padding, ceil_mode, count_include_pad,
                                 divisor_override)  # fmt: skip
        return m.div(m.contract(lambda one: _added(one, window, m), x), count).reshape(g.shape())

    def backward(
        m: Steps, g: CallInputs, input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Optional[int] = None,
    ) -> list[Node]:  # fmt: skip
        x, window, count = parts(m, g, input, kernel_size, stride, padding, ceil_mode, count_include_pad,
                                 divisor_override)  # fmt: skip
        with m.outside():
            share = m.div(_lifted(g.dy, rank), count)
        one = np.ones((x.shape[1], 1, *window.size))
        dx = m.contract(lambda a: input_gradient(a, one, window, x.shape[1], x.shape, m), share, coarse=True)
        return [[dx.reshape(input.shape)]]

    return forward, backward


def _added(x: Array, window: SlidingWindow, m: Steps) -> Array:
    read = window.padded(x, m)
    made = np.zeros((*x.shape[:2], *window.out), dtype=x.dtype)
    for _, _, at in window.taps():
        made += read[at]
    return made


avg_pool1d, avg_pool2d = _avg_pool(1), _avg_pool(2)


def _adaptive(rank: int) -> tuple[Any, Any]:
    """Return forward and backward of averages over parts of nearly equal size: sums by matrices of ones."""

    def matrices(g: CallInputs, input: Array) -> list[Array]:
        found = []
        for size, n in zip(_sides(input.shape, rank), _sides(g.shape(), rank)):
            made = np.zeros((n, size))
            for at in range(n):
                made[at, at * size // n : -(-(at + 1) * size // n)] = 1.0
            found.append(made)
        return found

    def forward(m: Steps, g: CallInputs, input: Array, output_size: Any) -> Any:
        down, across = matrices(g, input)
        count = down.sum(1)[:, None] * across.sum(1)
        total = m.contract(lambda x: np.matmul(np.matmul(down, x), across.T), _lifted(input, rank))
        return m.div(total, count).reshape(g.shape())

    def backward(m: Steps, g: CallInputs, input: Array, output_size: Any) -> list[Node]:
        down, across = matrices(g, input)
        with m.outside():
            share = m.div(_lifted(g.dy, rank), down.sum(1)[:, None] * across.sum(1))
        dx = m.contract(lambda dy: np.matmul(np.matmul(down.T, dy), across), share, coarse=True)
        return [[dx.reshape(input.shape)]]

    return forward, backward


adaptive_avg_pool1d, adaptive_avg_pool2d = _adaptive(1), _adaptive(2)


# attention


def attention_scores(
    m: Steps, query: Array, key: Array, mask: Optional[Array], is_causal: bool, scale: Optional[float]
) -> tuple[Any, float]:
    """Return the masked scores of attention, and their scale."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    root = math.sqrt(abs(factor))
    with m.outside():
        scores = m.matmul(m.mul(query, math.copysign(root, factor)), m.mul(key, root).swapaxes(-1, -2))
        if is_causal:
            mask = np.tri(query.shape[-2], key.shape[-2], dtype=bool)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else m.add(scores, mask)
    return scores, factor


def _shares(
    m: Steps, query: Array, key: Array, mask: Optional[Array], is_causal: bool, scale: Optional[float]
) -> tuple[Any, float]:
    scores, factor = attention_scores(m, query, key, mask, is_causal, scale)
    shares = softmax_of(m, scores, (scores.ndim - 1,))
    shares = np.where(np.isneginf(scores).all(axis=-1, keepdims=True), 0.0, shares)
    with m.outside():
        return m.rounded(shares), factor


def _grouped(query: Array, one: Array, is_grouped: bool) -> Array:
    """Return keys or values for each head of the query."""
    return np.repeat(one, query.shape[-3] // one.shape[-3], axis=-3) if is_grouped else one


def attention(
    m: Steps, g: CallInputs, query: Array, key: Array, value: Array, attn_mask: Optional[Array] = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout_p:
        raise RefusedRecord("attention has dropout")
    key, value = (_grouped(query, one, enable_gqa) for one in (key, value))
    return m.matmul(_shares(m, query, key, attn_mask, is_causal, scale)[0], value)


def attention_back(
    m: Steps, g: CallInputs, query: Array, key: Array, value: Array, attn_mask: Optional[Array] = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False,
) -> list[Node]:  # fmt: skip
    if dropout_p or is_float(attn_mask):
        raise RefusedRecord("attention has dropout or the mask has a gradient")
    keys, values = (_grouped(query, one, enable_gqa) for one in (key, value))
    p, factor = _shares(m, query, keys, attn_mask, is_causal, scale)
    dv = m.matmul(p.swapaxes(-1, -2), g.dy)
    with m.outside():
        dp = m.matmul(g.dy, values.swapaxes(-1, -2))
        ds = m.mul(p, m.sub(dp, m.sum(m.mul(dp, p), (dp.ndim - 1,), keepdims=True)))
        ds = m.mul(ds, factor)
    dq, dk = m.matmul(ds, keys), m.matmul(ds.swapaxes(-1, -2), query)
    return [[dq, *(_ungrouped(m, one, like) for one, like in ((dk, key), (dv, value)))]]


def _ungrouped(m: Steps, gradient: Array, like: Array) -> Any:
    """Return the gradient of keys or values that several heads of the query read."""
    if gradient.ndim < 3 or gradient.shape[-3] == like.shape[-3]:
        return reduced(m, gradient, like)
    by_head = gradient.reshape(*like.shape[:-2], -1, *like.shape[-2:])
    return m.sum(by_head, (by_head.ndim - 3,))
