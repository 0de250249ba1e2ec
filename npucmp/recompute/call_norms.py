"""Formulas of PyTorch's norms, softmax, losses and reductions, and of their gradients.

Source: PyTorch 2.x documentation; derivatives.yaml for what autograd saves and which node a loss ends in.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Sequence

import numpy as np

from npucmp.model.dtypes import ROUNDING
from npucmp.recompute.arguments import Refused
from npucmp.recompute.call_inputs import CallInputs, Node, axes_of, axis, is_float, tensor
from npucmp.recompute.numpy_formulas import log_softmax_of, rsqrt, softmax_of
from npucmp.recompute.numpy_given import Array
from npucmp.recompute.numpy_steps import Steps

# norms: statistics over `axes`; weight and bias in a shape that is broadcast


def _statistics(m: Steps, x: Array, axes: Sequence[int], eps: float, is_centred: bool = True) -> tuple[Any, Any]:
    """The deviations from the mean and the reciprocal of their size."""
    away = m.sub(x, m.mean(x, axes, keepdims=True)) if is_centred else x
    return away, rsqrt(m, m.add(m.mean(m.mul(away, away), axes, keepdims=True), eps))


def _affine(m: Steps, x: Any, weight: Optional[Array], bias: Optional[Array]) -> Any:
    x = x if weight is None else m.mul(x, weight)
    return x if bias is None else m.add(x, bias)


def _norm_back(
    m: Steps, dy: Array, away: Any, rstd: Any, axes: Sequence[int], weight: Optional[Array], is_centred: bool = True
) -> tuple[Any, Any, Any]:
    """The gradient of the input, and what those of weight and bias are sums of: products, and the gradient itself."""
    with m.outside():
        normed = m.mul(away, rstd)
        scaled = dy if weight is None else m.mul(dy, weight)
        along = m.mul(normed, m.mean(m.mul(scaled, normed), axes, keepdims=True))
        inner = m.sub(m.sub(scaled, m.mean(scaled, axes, keepdims=True)), along) if is_centred else m.sub(scaled, along)
        products = m.mul(dy, normed)
    return m.mul(rstd, inner), products, dy


def _over(m: Steps, one: Any, like: Optional[Array], axes: Sequence[int]) -> Any:
    """A gradient of weight or bias; some kernels add it in the type of the output."""
    return None if like is None else m.sum(one, axes, coarse=True).reshape(like.shape)


def _rows_and_axes(x: Array, normalized_shape: Any) -> tuple[list[int], list[int]]:
    shape = normalized_shape if isinstance(normalized_shape, tuple) else (normalized_shape,)
    start = x.ndim - len(shape)
    if start < 0 or x.shape[start:] != shape:
        raise Refused(f"a norm of {list(shape)} for {list(x.shape)}"[:80])
    return [*range(start)], [*range(start, x.ndim)]


def layer_norm(
    m: Steps, g: CallInputs, input: Array, normalized_shape: Any, weight: Optional[Array] = None,
    bias: Optional[Array] = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    _, axes = _rows_and_axes(input, normalized_shape)
    away, rstd = _statistics(m, input, axes, eps)
    return _affine(m, m.mul(away, rstd), weight, bias)


def layer_norm_back(
    m: Steps, g: CallInputs, input: Array, normalized_shape: Any, weight: Optional[Array] = None,
    bias: Optional[Array] = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> list[Node]:  # fmt: skip
    rows, axes = _rows_and_axes(input, normalized_shape)
    with m.outside():
        away, rstd = _statistics(m, input, axes, eps)
    dx, products, dy = _norm_back(m, g.dy, away, rstd, axes, weight)
    return [[dx, _over(m, products, weight, rows), _over(m, dy, bias, rows)]]


def rms_norm(
    m: Steps, g: CallInputs, input: Array, normalized_shape: Any, weight: Optional[Array] = None,
    eps: Optional[float] = None,
) -> Any:  # fmt: skip
    """Steps of several kernels on some devices: each result in the type of the output."""
    _, axes = _rows_and_axes(input, normalized_shape)
    with m.outside():
        away, rstd = _statistics(m, input, axes, _epsilon(g, eps), is_centred=False)
        if weight is not None:
            return m.mul(m.mul(away, rstd), weight)
    return m.mul(away, rstd)


def _epsilon(g: CallInputs, eps: Optional[float]) -> float:
    if eps is None:
        g.doubt("the epsilon of the type was taken")
        return 2.0**-23
    return eps


def rms_norm_back(
    m: Steps, g: CallInputs, input: Array, normalized_shape: Any, weight: Optional[Array] = None,
    eps: Optional[float] = None,
) -> list[Node]:  # fmt: skip
    rows, axes = _rows_and_axes(input, normalized_shape)
    with m.outside():
        away, rstd = _statistics(m, input, axes, _epsilon(g, eps), is_centred=False)
    dx, products, dy = _norm_back(m, g.dy, away, rstd, axes, weight, is_centred=False)
    dw = _over(m, products, weight, rows)
    return [[dx, dw], *([[m.mul(dy, weight), dw]] if weight is not None else [])]


def _channels(x: Array) -> tuple[list[int], list[int]]:
    """The axes of a norm over images, and the shape of weights."""
    if x.ndim < 2:
        raise Refused("a norm of images without channels")
    return [0, *range(2, x.ndim)], [-1 if at == 1 else 1 for at in range(x.ndim)]


def _shaped(one: Optional[Array], shape: Sequence[int]) -> Optional[Array]:
    return None if one is None else one.reshape(shape)


def batch_norm(
    m: Steps, g: CallInputs, input: Array, running_mean: Optional[Array], running_var: Optional[Array],
    weight: Optional[Array] = None, bias: Optional[Array] = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Folded into a factor and an offset by some kernels: steps are those of an accumulator."""
    axes, shape = _channels(input)
    if training:
        away, rstd = _statistics(m, input, axes, eps)
    else:
        mean, variance = (tensor(one, "a running statistic").reshape(shape) for one in (running_mean, running_var))
        away, rstd = m.sub(input, mean), rsqrt(m, m.add(variance, eps))
    factor = rstd if weight is None else m.mul(rstd, weight.reshape(shape))
    return _affine(m, m.mul(away, factor), None, _shaped(bias, shape))


def batch_norm_back(
    m: Steps, g: CallInputs, input: Array, running_mean: Optional[Array], running_var: Optional[Array],
    weight: Optional[Array] = None, bias: Optional[Array] = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> list[Node]:  # fmt: skip
    axes, shape = _channels(input)
    scale = _shaped(weight, shape)
    if training:
        with m.outside():
            away, rstd = _statistics(m, input, axes, eps)
        dx, products, dy = _norm_back(m, g.dy, away, rstd, axes, scale)
    else:
        mean, variance = (tensor(one, "a running statistic").reshape(shape) for one in (running_mean, running_var))
        with m.outside():
            rstd, dy = rsqrt(m, m.add(variance, eps)), g.dy
            products = m.mul(m.mul(m.sub(input, mean), rstd), dy)
            factor = rstd if scale is None else m.mul(rstd, scale)
        dx = m.mul(dy, factor)
    found = [dx, _over(m, products, weight, axes), _over(m, dy, bias, axes)]
    return [[found[0], None, None, *found[1:]], found]


def group_norm(
    m: Steps, g: CallInputs, input: Array, num_groups: int, weight: Optional[Array] = None,
    bias: Optional[Array] = None, eps: float = 1e-5,
) -> Any:  # fmt: skip
    x, axes, shape = _groups(input, num_groups)
    away, rstd = _statistics(m, x, axes, eps)
    return _affine(m, m.mul(away, rstd).reshape(input.shape), _shaped(weight, shape), _shaped(bias, shape))


def _groups(x: Array, groups: int) -> tuple[Array, list[int], list[int]]:
    _, shape = _channels(x)
    if not isinstance(groups, int) or groups < 1 or x.shape[1] % groups:
        raise Refused(f"{groups!r:.20} groups of {x.shape[1]} channels")
    return x.reshape(x.shape[0], groups, -1), [2], shape


def group_norm_back(
    m: Steps, g: CallInputs, input: Array, num_groups: int, weight: Optional[Array] = None,
    bias: Optional[Array] = None, eps: float = 1e-5,
) -> list[Node]:  # fmt: skip
    x, axes, shape = _groups(input, num_groups)
    with m.outside():
        away, rstd = _statistics(m, x, axes, eps)
    flat = g.dy.reshape(x.shape)
    scale = None
    if weight is not None:
        scale = np.broadcast_to(weight.reshape(shape), input.shape).reshape(x.shape)
    dx, products, dy = _norm_back(m, flat, away, rstd, axes, scale)
    rows, _ = _channels(input)
    return [[dx.reshape(input.shape), _over(m, products.reshape(input.shape), weight, rows),
             _over(m, dy.reshape(input.shape), bias, rows)]]  # fmt: skip


# softmax and losses


def softmax(m: Steps, g: CallInputs, input: Array, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return softmax_of(m, input, (_axis(dim, input),))


def _axis(dim: Any, x: Array) -> int:
    if dim is None:
        raise Refused("nothing tells the axis")
    return axis(dim, x.ndim)


def softmax_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
) -> list[Node]:
    along = (_axis(dim, input),)
    y, dy = g.y(m, lambda: softmax_of(m, input, along)), g.dy
    with m.outside():
        inner = m.sub(dy, m.sum(m.mul(y, dy), along, keepdims=True))
    return [[m.mul(y, inner)]]


def log_softmax(m: Steps, g: CallInputs, input: Array, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return log_softmax_of(m, input, (_axis(dim, input),))


def log_softmax_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
) -> list[Node]:
    along = (_axis(dim, input),)
    y, dy = g.y(m, lambda: log_softmax_of(m, input, along)), g.dy
    with m.outside():
        share = m.mul(m.exp(y), m.sum(dy, along, keepdims=True))
    return [[m.sub(dy, share)]]


def logsumexp(m: Steps, g: CallInputs, input: Array, dim: Any, keepdim: bool = False) -> Any:
    axes = axes_of(dim, input.ndim)
    top = input.max(axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    found = m.add(m.log(m.sum(m.exp(m.sub(input, top)), axes, keepdims=True)), top)
    return found if keepdim else found.squeeze(axes)


def logsumexp_back(m: Steps, g: CallInputs, input: Array, dim: Any, keepdim: bool = False) -> list[Node]:
    axes = axes_of(dim, input.ndim)
    y = _kept(g.y(m, lambda: logsumexp(m, g, input, dim, keepdim)), axes, input.ndim)
    with m.outside():
        share = m.exp(m.sub(input, y))
    return [[m.mul(_kept(g.dy, axes, input.ndim), share)]]


def _kept(one: Array, axes: Sequence[int], rank: int) -> Array:
    """A result of a reduction with its axes."""
    return np.expand_dims(one, tuple(axes)) if one.ndim < rank else one


def _weights(x: Array, target: Array, weight: Optional[Array], ignore: int) -> tuple[Array, Array]:
    """Classes with the axis of x's classes first among them, and what each counts."""
    classes = x.shape[1 if x.ndim > 1 else 0]
    known = target != ignore
    if known.any() and not (target[known].min() >= 0 and target[known].max() < classes):
        raise Refused("labels beyond the classes")
    safe = np.where(known, target, 0)
    share = known.astype(np.float64) if weight is None else np.where(known, weight[safe], 0.0)
    return safe, share


def _reduced(m: Steps, losses: Any, total: Any, reduction: str) -> Any:
    if reduction == "none":
        return losses
    found = m.sum(losses)
    return found if reduction == "sum" else m.div(found, total)


def _spread(m: Steps, dy: Array, total: Any, reduction: str) -> Any:
    """The gradient that reached each loss."""
    return m.div(dy, total) if reduction == "mean" else dy


def nll_loss(
    m: Steps, g: CallInputs, input: Array, target: Array, weight: Optional[Array] = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    safe, share = _weights(input, target, weight, ignore_index)
    along = 1 if input.ndim > 1 else 0
    picked = np.take_along_axis(input, np.expand_dims(safe, along), along).squeeze(along)
    losses = -m.mul(picked, share) if weight is not None else np.where(share > 0, -picked, 0.0)
    return np.asarray(_reduced(m, losses, share.sum(), reduction))


def nll_loss_back(
    m: Steps, g: CallInputs, input: Array, target: Array, weight: Optional[Array] = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
) -> list[Node]:  # fmt: skip
    return [[_to_log(m, g.dy, input, target, weight, ignore_index, reduction)]]


def _to_log(
    m: Steps, dy: Array, input: Array, target: Array, weight: Optional[Array], ignore: int, reduction: str
) -> Any:
    safe, share = _weights(input, target, weight, ignore)
    along = 1 if input.ndim > 1 else 0
    with m.outside():
        each = -m.mul(_spread(m, dy, share.sum(), reduction), share)
    found = np.zeros(input.shape)
    np.put_along_axis(
        found, np.expand_dims(safe, along), np.expand_dims(np.broadcast_to(each, safe.shape), along), along
    )
    return found


def cross_entropy(
    m: Steps, g: CallInputs, input: Array, target: Array, weight: Optional[Array] = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Of two kernels: the logarithms are stored in the type of the output."""
    along = 1 if input.ndim > 1 else 0
    logs = log_softmax_of(m, input, (along,))
    with m.outside():
        logs = m.rounded(logs)
    if is_float(target):
        wanted = _smoothed(m, target, input.shape[along], label_smoothing)
        terms = m.mul(logs, wanted if weight is None else m.mul(wanted, _classes(weight, input)))
        losses = -m.sum(terms, (along,))
        return np.asarray(_reduced(m, losses, losses.size, reduction))
    plain = nll_loss(m, g, logs, target, weight, None, ignore_index, None, reduction)
    if not label_smoothing:
        return plain
    _, share = _weights(input, target, weight, ignore_index)
    known = target != ignore_index
    with m.outside():
        smooth = -m.sum(logs if weight is None else m.mul(logs, _classes(weight, input)), (along,))
        smooth = np.where(known, smooth, 0.0)
        smooth = m.mul(_reduced(m, smooth, share.sum(), reduction), label_smoothing / input.shape[along])
        plain = m.mul(plain, 1 - label_smoothing)
    return np.asarray(m.add(plain, smooth))


def _classes(weight: Array, x: Array) -> Array:
    return weight.reshape([-1 if at == (1 if x.ndim > 1 else 0) else 1 for at in range(x.ndim)])


def _smoothed(m: Steps, wanted: Array, classes: int, smoothing: float) -> Any:
    return m.add(m.mul(wanted, 1 - smoothing), smoothing / classes) if smoothing else wanted


def cross_entropy_back(
    m: Steps, g: CallInputs, input: Array, target: Array, weight: Optional[Array] = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> list[Node]:  # fmt: skip
    """Of the whole call, or of its last node, which hands on the gradient of the logarithms."""
    along = 1 if input.ndim > 1 else 0
    dy = np.asarray(g.dy)
    with m.outside():
        if is_float(target):
            wanted = _smoothed(m, target, input.shape[along], label_smoothing)
            wanted = wanted if weight is None else m.mul(wanted, _classes(weight, input))
            rows = input.size // input.shape[along]
            each = _spread(m, dy, rows, reduction)
            each = np.expand_dims(each, along) if each.ndim else each
            to_log = -m.mul(wanted, each)
        else:
            to_log = _to_log(m, dy, input, target, weight, ignore_index, reduction)
            if label_smoothing:
                _, share = _weights(input, target, weight, ignore_index)
                each = np.where(target != ignore_index, _spread(m, dy, share.sum(), reduction), 0.0)
                smooth = m.mul(np.expand_dims(each, along), label_smoothing / input.shape[along])
                smooth = smooth if weight is None else m.mul(smooth, _classes(weight, input))
                to_log = m.sub(m.mul(to_log, 1 - label_smoothing), smooth)
        shares = m.exp(m.rounded(log_softmax_of(m, input, (along,))))
        back = m.mul(shares, m.sum(to_log, (along,), keepdims=True))
    return [[m.sub(to_log, back), None], [to_log]]


def _loss(value: Callable[..., Any], slope: Callable[..., Any]) -> tuple[Any, Any]:
    """A loss of the difference of two tensors."""

    def forward(
        m: Steps, g: CallInputs, input: Array, target: Array, size_average: Any = None, reduce: Any = None,
        reduction: str = "mean", *more: Any, **options: Any,
    ) -> Any:  # fmt: skip
        losses = value(m, m.sub(input, target), *more, **options)
        return np.asarray(_reduced(m, losses, losses.size, reduction))

    def backward(
        m: Steps, g: CallInputs, input: Array, target: Array, size_average: Any = None, reduce: Any = None,
        reduction: str = "mean", *more: Any, **options: Any,
    ) -> list[Node]:  # fmt: skip
        away = m.sub(input, target)
        with m.outside():
            scale = slope(m, away, *more, **options)
            each = _spread(m, np.asarray(g.dy), away.size, reduction)
        dx = m.mul(scale, each)
        return [[dx, -dx], [dx]]

    return forward, backward


def _l1_back(
    m: Steps, g: CallInputs, input: Array, target: Array, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> list[Node]:  # fmt: skip
    """Of the call as one node, or of the reduction that it ends in."""
    each = np.broadcast_to(_spread(m, np.asarray(g.dy), input.size, reduction), input.shape)
    dx = np.sign(input - target) * each
    return [[dx, -dx], [dx], [each]]


def _huber(m: Steps, away: Any, beta: float = 1.0) -> Any:
    size = np.abs(away)
    return np.where(size < beta, m.div(m.mul(0.5, m.mul(away, away)), beta), m.sub(size, 0.5 * beta))


mse_loss = _loss(lambda m, away: m.mul(away, away), lambda m, away: m.mul(2.0, away))
l1_loss = _loss(lambda m, away: np.abs(away), lambda m, away: np.sign(away))[0], _l1_back
smooth_l1_loss = _loss(_huber, lambda m, away, beta=1.0: np.where(
    np.abs(away) < beta, m.div(away, beta), np.sign(away)))  # fmt: skip


def bce(
    m: Steps, g: CallInputs, input: Array, target: Array, weight: Optional[Array] = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    with np.errstate(all="ignore"):
        yes, no = np.maximum(m.log(input), -100.0), np.maximum(m.apply(np.log1p, -input), -100.0)
    losses = -m.add(m.mul(target, yes), m.mul(m.sub(1.0, target), no))
    losses = losses if weight is None else m.mul(losses, weight)
    return np.asarray(_reduced(m, losses, losses.size, reduction))


def bce_with_logits(
    m: Steps, g: CallInputs, input: Array, target: Array, weight: Optional[Array] = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean", pos_weight: Optional[Array] = None,
) -> Any:  # fmt: skip
    with m.outside():
        no = m.add(np.maximum(-input, 0.0), m.apply(np.log1p, m.exp(-np.abs(input))))
        scale = 1.0 if pos_weight is None else m.add(m.mul(m.sub(pos_weight, 1.0), target), 1.0)
        losses = m.add(m.mul(m.sub(1.0, target), input), m.mul(scale, no))
        losses = losses if weight is None else m.mul(losses, weight)
    return np.asarray(_reduced(m, losses, losses.size, reduction))


def bce_with_logits_back(
    m: Steps, g: CallInputs, input: Array, target: Array, weight: Optional[Array] = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean", pos_weight: Optional[Array] = None,
) -> list[Node]:  # fmt: skip
    if pos_weight is not None or weight is not None:
        raise Refused("the gradient of a loss with weights")
    with m.outside():
        away = m.sub(m.div(1.0, m.add(1.0, m.exp(-input))), target)
        each = _spread(m, np.asarray(g.dy), away.size, reduction)
    return [[m.mul(away, each)]]


# reductions


def total(m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return np.asarray(m.sum(_counted(input), axes_of(dim, input.ndim), keepdim))


def _counted(x: Array) -> Array:
    return x.astype(np.int64) if x.dtype.kind == "b" else x


def total_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> list[Node]:
    return [[np.broadcast_to(_kept(g.dy, axes_of(dim, input.ndim), input.ndim), input.shape)]]


def mean(m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return np.asarray(m.mean(input, axes_of(dim, input.ndim), keepdim))


def mean_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> list[Node]:
    axes = axes_of(dim, input.ndim)
    count = math.prod(input.shape[one] for one in axes)
    return [[np.broadcast_to(m.div(_kept(g.dy, axes, input.ndim), float(max(1, count))), input.shape)]]


def _spread_of(dim: Any, unbiased: Any, correction: Any) -> tuple[Any, float]:
    """The axes and what is subtracted from the number of elements."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return dim, float(correction) if correction is not None else float(unbiased)


def _variance(m: Steps, x: Array, dim: Any, less: float, keepdim: bool) -> tuple[Any, Any, tuple[int, ...], float]:
    axes = axes_of(dim, x.ndim)
    count = max(0.0, math.prod(x.shape[one] for one in axes) - less)
    away = m.sub(x, m.mean(x, axes, keepdims=True))
    with np.errstate(all="ignore"):
        return m.div(m.sum(m.mul(away, away), axes, keepdim), np.float64(count)), away, axes, count


def variance(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False,
    correction: Any = None,
) -> Any:  # fmt: skip
    dim, less = _spread_of(dim, unbiased, correction)
    return np.asarray(_variance(m, input, dim, less, keepdim)[0])


def variance_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False,
    correction: Any = None,
) -> list[Node]:  # fmt: skip
    dim, less = _spread_of(dim, unbiased, correction)
    with m.outside():
        _, away, axes, count = _variance(m, input, dim, less, True)
        scale = m.mul(2.0 / count if count else math.inf, _kept(g.dy, axes, input.ndim))
    return [[m.mul(scale, away)]]


def deviation(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False,
    correction: Any = None,
) -> Any:  # fmt: skip
    return m.sqrt(variance(m, g, input, dim, unbiased, keepdim, correction))


def deviation_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False,
    correction: Any = None,
) -> list[Node]:  # fmt: skip
    y = g.y(m, lambda: deviation(m, g, input, dim, unbiased, keepdim, correction))
    dim, less = _spread_of(dim, unbiased, correction)
    with m.outside():
        _, away, axes, count = _variance(m, input, dim, less, True)
        scale = m.div(_kept(g.dy, axes, input.ndim), m.mul(_kept(y, axes, input.ndim), count))
    return [[m.mul(scale, away)]]


def norm(
    m: Steps, g: CallInputs, input: Array, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    if p not in (2, "fro", None):
        raise Refused(f"a norm of the order {p!r:.20}")
    return np.asarray(m.sqrt(m.sum(m.mul(input, input), axes_of(dim, input.ndim), keepdim)))


def product(m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = axes_of(dim, input.ndim)
    count = math.prod(input.shape[one] for one in axes)
    found = np.prod(_counted(input), axis=axes, keepdims=keepdim)
    return np.asarray(m.rounded(found, ROUNDING * m.accumulator * math.sqrt(count) * np.abs(found)))


def cumulated(m: Steps, g: CallInputs, input: Array, dim: Any, dtype: Any = None) -> Any:
    return m.contract(lambda one: np.cumsum(one, axis=axis(dim, input.ndim)), _counted(input))


def cumulated_back(m: Steps, g: CallInputs, input: Array, dim: Any, dtype: Any = None) -> list[Node]:
    at = axis(dim, input.ndim)
    return [[m.contract(lambda one: np.flip(np.cumsum(np.flip(one, at), axis=at), at), g.dy)]]
