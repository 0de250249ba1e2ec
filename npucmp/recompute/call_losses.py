"""Formulas of PyTorch's losses, and of their gradients.

Source: PyTorch 2.x documentation; derivatives.yaml (the last node of each loss); ATen/native/Loss.cpp.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.call_inputs import CallInputs, Node, is_float
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_formulas import log_softmax_of, sigmoid


def _weights(x: Array, target: Array, weight: Optional[Array], ignore: int) -> tuple[Array, Array]:
    """Return the labels (0 if ignored) and their weights (0 if ignored)."""
    classes = x.shape[1 if x.ndim > 1 else 0]
    known = target != ignore
    if known.any() and not (target[known].min() >= 0 and target[known].max() < classes):
        raise RefusedRecord("labels are not among the classes")
    safe = np.where(known, target, 0)
    share = known.astype(np.float64) if weight is None else np.where(known, weight[safe], 0.0)
    return safe, share


def _reduced(m: Steps, losses: Any, total: Any, reduction: str) -> Any:
    if reduction == "none":
        return losses
    found = m.sum(losses)
    return found if reduction == "sum" else m.div(found, total)


def _spread(m: Steps, dy: Array, total: Any, reduction: str) -> Any:
    """Return the gradient of each loss."""
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
    """Compute the loss as two kernels do. The first stores the logarithms in the type of the output."""
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
    """Return the gradients of the whole call, and those of its last node: the gradient of the logarithms."""
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
    """Return forward and backward of a loss of the difference of two tensors."""

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
    """Return the gradients of the call as one node, and those of its final reduction."""
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


def bce_back(
    m: Steps, g: CallInputs, input: Array, target: Array, weight: Optional[Array] = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean",
) -> list[Node]:  # fmt: skip
    """Return the gradient. Its divisor is at least 1e-12 (binary_cross_entropy_backward)."""
    with m.outside():
        below = np.maximum(m.mul(input, m.sub(1.0, input)), 1e-12)
        each = _spread(m, np.asarray(g.dy), input.size, reduction)
        slope = m.div(m.mul(each, m.sub(input, target)), below)
        slope = slope if weight is None else m.mul(slope, weight)
    return [[m.rounded(slope), None]]


def bce_with_logits_back(
    m: Steps, g: CallInputs, input: Array, target: Array, weight: Optional[Array] = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean", pos_weight: Optional[Array] = None,
) -> list[Node]:  # fmt: skip
    with m.outside():
        share = sigmoid(m, input)
        if pos_weight is None:
            away = m.sub(share, target)
        else:
            wanted = m.mul(pos_weight, target)
            away = m.sub(m.mul(m.sub(m.add(wanted, 1.0), target), share), wanted)
        away = away if weight is None else m.mul(away, weight)
        each = _spread(m, np.asarray(g.dy), away.size, reduction)
    return [[m.mul(away, each), None]]
