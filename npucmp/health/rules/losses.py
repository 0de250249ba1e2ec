"""Rules of losses: their value, their inputs, and the loss scale for float16."""

from __future__ import annotations

import math
from typing import Any, Iterator, Optional

import numpy as np

from npucmp.health.facts import Health, Op
from npucmp.health.rule import Found, rule
from npucmp.health.rules.locations import Loss, full_values, is_float, losses_in
from npucmp.measure.tensor_stats import TensorStats

Finds = Iterator[Found]
ABOVE, TIMES = 1.0, 1.5  # above ln C, and factor of ln C: clean runs have 0.95 to 1.23 ln C
ONE = 1e-3  # tolerance of a sum of probabilities


def _losses(health: Health) -> Iterator[Loss]:
    """Yield every loss once, in the first step that has it."""
    seen = set()
    for one in losses_in(health):
        if one.name not in seen:
            seen.add(one.name)
            yield one


@rule(
    "loss.nonfinite",
    "error",
    "figures, losses",
    says="the loss is NaN or infinite",
    remedy="npucmp overflow names the first operator that produces it",
    source="AUTOTRAINER, UMLAUT; 37 reasons #37",
)
def nonfinite(health: Health, limit: Optional[float]) -> Finds:
    """Report the first step in which each loss is NaN or infinite."""
    seen = set()
    for one in losses_in(health):
        x = one.op.outputs[0].figures.extremes if one.op.outputs else None
        if x is not None and (x.nan or x.inf) and one.name not in seen:
            seen.add(one.name)
            yield Found(one.op, f"is {'NaN' if x.nan else 'infinite'}")


@rule(
    "loss.zero",
    "hint",
    "figures, backward, losses",
    says="the loss is exactly 0",
    remedy="check for one class, masked labels or a wrong argument; the network may have memorised the data",
    source="guides of MindSpore",
)
def zero(health: Health, limit: Optional[float]) -> Finds:
    """Report a loss of 0 in any step of a run with a backward pass."""
    seen = set()
    for one in losses_in(health):
        if one.op.outputs and one.op.outputs[0].figures.is_zero and one.name not in seen:
            seen.add(one.name)
            yield Found(one.op, "is exactly 0", 0.0)


@rule(
    "loss.negated",
    "error",
    "figures, backward, losses",
    says="the gradient that enters the loss is negative: the loss is maximised",
    remedy="remove the minus sign",
    source="TheDeepChecker flipped_sign",
)
def negated(health: Health, limit: Optional[float]) -> Finds:
    """Examine the last step. All losses must be negated: adversarial trainings subtract one of several losses on
    purpose."""
    losses = [one for one in losses_in(health) if one.step is health.steps[-1] and one.flows]
    highest = [one.flows[0].figures.maximum for one in losses]
    if losses and all(value is not None and value < 0 for value in highest):
        yield Found(losses[0].op, f"the gradient that enters it is {highest[0]:g}", highest[0], limit=0.0)


@rule(
    "loss.negative",
    "error",
    "figures, losses",
    says="a cross entropy is below 0",
    remedy="check targets and inputs: the loss expects another kind of one of them",
    source="AUTOTRAINER",
)
def negative(health: Health, limit: Optional[float]) -> Finds:
    """Examine losses of classes only: the logarithm of a probability is never above 0."""
    for one in losses_in(health):
        if one.op.type.has("classes") and one.value is not None and one.value < -1e-6:
            yield Found(one.op, f"is {one.value:.4g}", one.value, limit=0.0)
            return


@rule(
    "loss.above_chance",
    "warning",
    "figures, losses",
    says="the first loss is far above that of random guessing",
    remedy="logits are too large, or labels or scale are wrong",
    source="37 reasons #17; TheDeepChecker",
)
def above_chance(health: Health, limit: Optional[float]) -> Finds:
    """Report a mean loss in the first dumped step that exceeds ln C + 1 and 1.5 ln C for C classes. Lower losses
    (trained) are not reported, nor are contrastive losses, whose scale depends on a temperature."""
    for one in losses_in(health):
        if one.step.index or one.classes < 2 or one.value is None or one.reduction == "sum" or _pairs_samples(one):
            continue
        chance = math.log(one.classes)
        if one.value > max(chance + ABOVE, TIMES * chance):
            words = f"{one.value:.4g}, random guessing among {one.classes:,} classes gives {chance:.4g}"
            yield Found(one.op, words, one.value, limit=max(chance + ABOVE, TIMES * chance))


def _pairs_samples(one: Loss) -> bool:
    """Whether each sample has its own class, as in contrastive losses that pair samples of a batch: CLIP, SimCLR."""

    labels, count = one.labels, one.classes
    if one.logits is None or labels is None or one.logits.shape != (count, count) or labels.shape != (count,):
        return False
    values, x = full_values(labels), labels.figures
    return len(np.unique(values)) == count if values is not None else (x.minimum, x.maximum) == (0, count - 1)


@rule(
    "loss.softmax_twice",
    "warning",
    "figures, losses",
    says="a loss that expects logits receives probabilities",
    remedy="remove the softmax before it",
    source="37 reasons #19; UMLAUT; TheDeepChecker redundant_softmax",
)
def softmax_twice(health: Health, limit: Optional[float]) -> Finds:
    """Report rows without negative values that sum to 1; with statistics only, a mean of 1/C and values within [0,
    1]."""
    for one in _losses(health):
        if not one.op.type.has("reads logarithms") and one.classes > 1 and _are_probabilities(one):
            yield Found(
                one.op, f"{one.logits.slot if one.logits else ''}: its rows are probabilities, because they sum to 1"
            )


def _are_probabilities(one: Loss) -> bool:
    x = one.logits.figures if one.logits is not None else None
    if x is None or x.minimum is None or x.maximum is None or x.mean is None or x.minimum < 0 or x.maximum > 1 + ONE:
        return False
    values = full_values(one.logits)
    if values is None:
        return x.minimum < x.maximum and abs(x.mean * one.classes - 1) <= ONE
    return _most_off(values.sum(axis=1 if values.ndim > 1 else 0, dtype="float64")) <= ONE


def _most_off(sums: Any) -> float:
    """The largest distance of a sum from 1; infinite for NaN."""

    return float(np.max(np.nan_to_num(np.abs(sums - 1), nan=math.inf)))


@rule(
    "loss.sigmoid_twice",
    "warning",
    "figures, losses",
    says="a loss that expects logits receives the output of a sigmoid",
    remedy="remove the sigmoid before it, or use the loss of probabilities",
    source="37 reasons #19; guides of MindSpore (BCE, BCEWithLogits)",
)
def sigmoid_twice(health: Health, limit: Optional[float]) -> Finds:
    """Report values in [0, 1] whose bits or figures equal those of a sigmoid's output. The range alone proves
    nothing."""
    for one in _losses(health):
        if not one.op.type.has("squashes") or one.logits is None or not _within(one.logits.figures):
            continue
        sigmoids = (op for op in one.step.forward if op.type.has("saturates") and op.type.has("exponential"))
        writer = next((op for op in sigmoids if op.outputs and _alike(op.outputs[0].figures, one.logits.figures)), None)
        if writer is not None:
            yield Found(one.op, f"{one.logits.slot} is the output of {writer.name}")


def _alike(made: TensorStats, read: TensorStats) -> bool:
    """Whether two tensors are equal: by bits, else by their four figures."""
    if made.bits and read.bits:
        return made.bits == read.bits
    return (made.minimum, made.maximum, made.mean, made.rms) == (read.minimum, read.maximum, read.mean, read.rms)


def _within(figures: TensorStats) -> bool:
    low, high = figures.minimum, figures.maximum
    return low is not None and high is not None and low >= 0 and high <= 1


@rule(
    "loss.not_log_probabilities",
    "error",
    "figures, losses",
    says="a loss that expects logarithms of probabilities receives other values",
    remedy="insert a log_softmax before it",
    source="37 reasons #19",
)
def not_log_probabilities(health: Health, limit: Optional[float]) -> Finds:
    """Report values above 0, or rows whose exponentials do not sum to 1."""

    for one in _losses(health):
        x = one.logits.figures if one.logits is not None and one.op.type.has("reads logarithms") else None
        if x is None or x.maximum is None:
            continue
        values = full_values(one.logits)
        if x.maximum > ONE:
            yield Found(one.op, f"it reads values up to {x.maximum:.4g}; logarithms of probabilities are below 0")
        elif values is not None and values.ndim > 1:
            with np.errstate(all="ignore"):
                off = _most_off(np.exp(values.astype(np.float64)).sum(axis=1))
            if off > 10 * ONE:
                yield Found(
                    one.op, f"the sum of the probabilities of a row differs from 1 by {off:.2g}", off, limit=10 * ONE
                )


@rule(
    "loss.one_class",
    "error",
    "losses",
    says="a cross entropy over one class is always 0",
    remedy="use a binary loss, or as many outputs as there are classes",
    source="DeepDiagnosis; guides of MindSpore",
)
def one_class(health: Health, limit: Optional[float]) -> Finds:
    """Report logits with at least two axes, the second of length 1."""
    for one in _losses(health):
        if one.classes == 1 and one.logits is not None and len(one.logits.shape) > 1:
            yield Found(one.op, f"its input has the shape {list(one.logits.shape)}: one class", 1.0)


@rule(
    "loss.sum",
    "hint",
    "calls, losses",
    says="the loss is a sum: the learning rate depends on the batch size",
    remedy="use the mean, or divide the learning rate by the batch size",
    source="AUTOTRAINER",
)
def summed(health: Health, limit: Optional[float]) -> Finds:
    """Decide by the argument `reduction`."""
    for one in _losses(health):
        if one.reduction == "sum":
            yield Found(one.op, "reduction = 'sum'")


@rule(
    "loss.broadcast",
    "warning",
    "losses",
    says="a loss compares every pair, not each element with its target",
    remedy="give both the same shape: squeeze or unsqueeze one of them",
    source="TheDeepChecker; 37 reasons #25",
)
def broadcast(health: Health, limit: Optional[float]) -> Finds:
    """Examine elementwise losses only: report a broadcast shape that is larger than both, as for (B,) and (B, 1)."""
    for one in _losses(health):
        if not one.op.type.has("pairs") or one.logits is None or one.labels is None:
            continue
        a, b = one.logits.shape, one.labels.shape
        if a != b and a and b and math.prod(_broadcast(a, b)) > max(math.prod(a), math.prod(b)):
            yield Found(one.op, f"shapes {list(a)} and {list(b)} broadcast to {list(_broadcast(a, b))}")


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    length = max(len(a), len(b))
    wide = [(1,) * (length - len(shape)) + shape for shape in (a, b)]
    return tuple(max(x, y) for x, y in zip(*wide))


@rule(
    "loss.parts",
    "warning",
    "figures, tensors",
    1000.0,
    "parts of a summed loss differ widely in size",
    "weight them",
    "37 reasons #20",
    off=True,
)
def parts(health: Health, limit: float) -> Finds:
    """Compare the two scalars of the last addition in the forward pass."""
    for step in health.steps:
        last: Optional[Op] = None
        for op in step.forward:
            if op.type.has("sums") and [one.figures.elements for one in op.inputs] == [1, 1]:
                last = op
        sizes = [abs(one.figures.mean or 0.0) for one in last.inputs] if last is not None else []
        if last is not None and min(sizes) > 0 and max(sizes) > limit * min(sizes):
            times = max(sizes) / min(sizes)
            yield Found(last, f"adds {sizes[0]:.3g} and {sizes[1]:.3g}", times, limit=limit, unit="times")
            return


@rule(
    "lossscale.falls",
    "warning",
    "figures, steps, backward, losses",
    says="the loss scale falls: gradients overflow in float16",
    remedy="find the overflow with npucmp overflow, or use bfloat16",
    source="guides of MindSpore: loss scale falls many times or to 1",
)
def falls(health: Health, limit: Optional[float]) -> Finds:
    """Report two falls in the dumped steps; a fall to 1 or below is an error."""
    scales = [(step.index, step.loss_scale) for step in health.steps]
    known = [(index, scale) for index, scale in scales if scale]
    found = [(index, x, y) for (_, x), (index, y) in zip(known, known[1:]) if 0 < y < x]
    if len(found) > 1 or any(y <= 1 for _, _, y in found):
        index, _, end = found[-1]
        words = f"the loss scale falls from {found[0][1]:g} to {end:g}, {len(found)} times"
        yield Found(None, words, end, "error" if end <= 1 else "", step=index)


@rule(
    "lossscale.missing",
    "warning",
    "figures, backward, losses",
    says="gradients are float16, and the loss is not scaled",
    remedy="scale the loss (GradScaler, loss_scale), or use bfloat16",
    source="msprobe config_check; guides of MindSpore",
)
def missing(health: Health, limit: Optional[float]) -> Finds:
    """Report a loss gradient of at most 1 with float16 outputs of backward operators. Clean float16 runs have 65536."""
    for step in health.steps:
        scale = step.loss_scale
        half = [
            op
            for op in step.operators
            if op.is_gradient and any(one.dtype == "float16" and is_float(one) for one in op.outputs)
        ]
        if scale is not None and 0 < scale <= 1 and half:
            words = f"loss scale {scale:g}, {len(half)} gradients of operators are float16"
            yield Found(half[0], words, scale, places=len(half))
            return
