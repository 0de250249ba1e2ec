"""Formulas of norms, losses and updates, and of their gradients; see numpy_formulas.py."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import MissingTensor, RefusedRecord, axis_of
from npucmp.recompute.noisy_ops import Alternatives, Steps
from npucmp.recompute.numpy_formulas import channel_of, log_softmax_of, rsqrt, softmax_of
from npucmp.recompute.numpy_inputs import OperatorInputs

TF_EPSILON, GE_EPSILON = 1e-4, 1e-7


def _statistics(m: Steps, x: Array, axes: Sequence[int]) -> tuple[Any, Any, Any]:
    """Mean, variance and deviations from the mean."""
    mean = m.mean(x, axes, keepdims=True)
    away = m.sub(x, mean)
    return mean, m.mean(m.mul(away, away), axes, keepdims=True), away


def layer_norm(m: Steps, g: OperatorInputs) -> list[Any]:
    """y, mean, and the variance or the reciprocal of its square root. Axes and epsilon are attributes or inputs."""
    x, gamma, beta = g.x(0), g.x(1, "gamma"), g.x(2, "beta")
    declared = g.constants(3, "begin_norm_axis")
    start = axis_of(declared[0], x.ndim) if declared else x.ndim - gamma.ndim
    eps = float(g.inputs[5].reshape(-1)[0]) if 5 in g.inputs and g.inputs[5].size else g.number(
        "epsilon", "eps", usual=GE_EPSILON
    )  # fmt: skip
    axes = tuple(range(max(0, start), x.ndim))
    mean, variance, away = _statistics(m, x, axes)
    rstd = rsqrt(m, m.add(variance, np.float64(np.float32(eps))))
    y = m.add(m.mul(m.mul(away, rstd), gamma), beta)
    return [y, mean, Alternatives([variance, rstd])]


def layer_norm_grad(m: Steps, g: OperatorInputs) -> list[Any]:
    """x, dy, variance, mean, gamma → dx, and the gradients of gamma and beta."""
    x, dy, variance, mean, gamma = (g.x(at) for at in range(5))
    if g.source == "cann":
        x, dy = dy, x
    if dy.shape != x.shape:
        raise RefusedRecord(f"a gradient of {list(dy.shape)} for {list(x.shape)}")
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    rows = tuple(range(x.ndim - gamma.ndim))
    with m.outside():
        eps = np.float64(np.float32(g.number("epsilon", "eps", usual=GE_EPSILON)))
        centred = x - x.mean(axis=axes, keepdims=True)
        own = (centred * centred).mean(axis=axes, keepdims=True)
        is_rstd = np.abs(1 / np.sqrt(own + eps) - variance).sum() < np.abs(own - variance).sum()
        rstd = variance if is_rstd else rsqrt(m, m.add(variance, eps))
        away = m.mul(m.sub(x, mean), rstd)
        scaled = m.mul(dy, gamma)
        middle, along = m.mean(scaled, axes, keepdims=True), m.mean(m.mul(scaled, away), axes, keepdims=True)
        dx = m.mul(rstd, m.sub(m.sub(scaled, middle), m.mul(away, along)))
        return [dx, m.sum(m.mul(dy, away), rows), m.sum(dy, rows)]


def batch_norm(m: Steps, g: OperatorInputs) -> list[Any]:
    """x, scale, offset, mean, variance → y, mean, variance. In training it uses the batch's statistics, which are then
    results. Results that only its gradient reads are not computed."""
    x, scale, offset = g.x(0), g.x(1, "scale"), g.x(2, "offset")
    g.expect("is_training")
    declared = g.attribute("is_training")
    is_training = declared is not False if g.source in ("tfdbg", "npy") else bool(declared)  # a default is omitted
    return _normalised(m, g, x, (scale, offset), None if is_training else (g.x(3, "mean"), g.x(4, "variance")))


def bn_infer(m: Steps, g: OperatorInputs) -> list[Any]:
    """Batch norm in inference mode."""
    return _normalised(m, g, g.x(0), (g.x(1, "scale"), g.x(2, "offset")), (g.x(3, "mean"), g.x(4, "variance")))[:1]


def bn_inference(m: Steps, g: OperatorInputs) -> list[Any]:
    """Caffe's batch norm: x, mean, variance, the factor that divides both, scale, offset."""
    x, mean, variance = g.x(0), g.x(1, "mean"), g.x(2, "variance")
    factor, scale, offset = g.optional(3, "momentum"), g.optional(4, "scale"), g.optional(5, "offset")
    if factor is not None and factor.size == 1 and factor.reshape(-1)[0]:
        mean, variance = m.div(mean, factor.reshape(-1)[0]), m.div(variance, factor.reshape(-1)[0])
    ones = np.ones_like(mean)
    affine = (ones if scale is None else scale, ones * 0 if offset is None else offset)
    return _normalised(m, g, x, affine, (mean, variance))[:1]


def _normalised(
    m: Steps, g: OperatorInputs, x: Array, affine: tuple[Array, Array], known: Optional[tuple[Array, Array]]
) -> list[Any]:
    eps = np.float64(np.float32(g.number("epsilon", "eps", usual=TF_EPSILON)))
    channel = channel_of(g, x)
    shape = [-1 if axis == channel else 1 for axis in range(x.ndim)]
    scale, offset = (one.reshape(shape) for one in affine)
    if known is None:
        axes = [axis for axis in range(x.ndim) if axis != channel]
        mean, variance, away = _statistics(m, x, axes)
        count = x.size // max(1, x.shape[channel])
        declared = [mean.reshape(-1), m.mul(variance.reshape(-1), count / max(1, count - 1))]
    else:
        mean, variance = (one.reshape(shape) for one in known)
        away, declared = m.sub(x, mean), [known[0], known[1]]
    y = m.add(m.mul(away, m.mul(scale, rsqrt(m, m.add(variance, eps)))), offset)
    return [y, *declared]


# losses and updates


def sparse_cross_entropy(m: Steps, g: OperatorInputs) -> list[Any]:
    """MindSpore returns the mean loss or its gradient; TensorFlow returns the loss of each row and the gradients."""
    x, labels = g.x(0), g.x(1, "the labels")
    if x.ndim != 2 or labels.dtype.kind not in "iu" or labels.size != x.shape[0]:
        raise RefusedRecord(f"labels of {list(labels.shape)} for {list(x.shape)}")
    labels = labels.reshape(-1)
    if labels.size and not (labels.min() >= 0 and labels.max() < x.shape[1]):
        raise RefusedRecord("a label is out of range")
    wanted = np.zeros_like(x)
    wanted[np.arange(labels.size), labels] = 1.0
    loss, gradient = _cross_entropy(m, x, wanted)
    if g.source == "mindspore":
        return [m.div(gradient, float(len(x)))] if g.shapes[0] == x.shape else [m.mean(loss, (0,))]
    return [loss, gradient]


def cross_entropy(m: Steps, g: OperatorInputs) -> list[Any]:
    x, wanted = g.x(0), g.x(1, "the labels")
    if x.ndim != 2 or wanted.shape != x.shape:
        raise RefusedRecord(f"labels of {list(wanted.shape)} for {list(x.shape)}")
    return [*_cross_entropy(m, x, wanted)]


def _cross_entropy(m: Steps, x: Array, wanted: Array) -> tuple[Any, Any]:
    logs = log_softmax_of(m, x, (1,))
    return -m.sum(np.where(wanted != 0, m.mul(wanted, logs), 0.0), (1,)), m.sub(softmax_of(m, x, (1,)), wanted)


def momentum(m: Steps, g: OperatorInputs) -> list[Any]:
    """variable, accumulation, rate, gradient, momentum → the variable after its step."""
    variable, before, rate, gradient, share = (g.x(at) for at in range(5))
    scale = g.number("gradient_scale", usual=1.0) if g.attribute("gradient_scale") is not None else 1.0
    gradient = m.mul(gradient, scale) if scale != 1 else gradient
    after = m.add(m.mul(before, share), gradient)
    step = m.add(m.mul(share, after), gradient) if g.flag("use_nesterov") else after
    if rate.size != 1 or share.size != 1:
        raise MissingTensor("the rate or the momentum is not a scalar")
    return [m.sub(variable, m.mul(rate, step))]
