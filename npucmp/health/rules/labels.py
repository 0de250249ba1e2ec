"""Rules of labels: labels out of range, all equal, sorted, or of unbalanced classes."""

from __future__ import annotations

import math
from typing import Any, Iterator, Optional

import numpy as np

from npucmp.health.facts import Health, Tensor
from npucmp.health.rule import Found, rule
from npucmp.health.rules.locations import Loss, full_values, is_whole, losses_in

Finds = Iterator[Found]
FEWEST = 4  # fewest labels of a verdict
CHANCE = 1e-3  # largest probability of equal labels by chance
SORTED, KINDS = 16, 3  # fewest labels and classes of a sorted batch
MANY, OF_EACH = 500, 20  # fewest labels in all, and per class, of a comparison of class sizes


def _of_each(health: Health) -> Iterator[list[tuple[Loss, Tensor]]]:
    """Losses with integer class labels, the steps of each loss in one list."""
    found: dict[str, list[tuple[Loss, Tensor]]] = {}
    for one in losses_in(health):
        if one.labels is not None and is_whole(one.labels) and one.classes > 1:
            found.setdefault(one.name, []).append((one, one.labels))
    yield from found.values()


@rule(
    "label.single",
    "warning",
    "figures, losses",
    says="all labels of a batch are equal",
    remedy="shuffle the data",
    source="guides of MindSpore; 37 reasons #7 #10",
)
def single(health: Health, limit: Optional[float]) -> Finds:
    """Report equal labels in every step, if there are too many labels for chance: at least four labels of ten
    classes."""
    for losses in _of_each(health):
        values = [labels.figures.constant for _, labels in losses]
        loss, labels = losses[0]
        chance = sum(max(0, one.figures.elements - 1) for _, one in losses) * math.log(loss.classes)
        if None in values or loss.ignored in values or labels.figures.elements < FEWEST or chance < -math.log(CHANCE):
            continue
        words = f"all {labels.figures.elements} labels are class {values[0]:g}"
        yield Found(labels, words, values[0], step=loss.step.index)


@rule(
    "label.sorted",
    "hint",
    "values, losses",
    says="labels are sorted",
    remedy="shuffle the data",
    source="guides of MindSpore; 37 reasons #7",
)
def in_order(health: Health, limit: Optional[float]) -> Finds:
    """Report labels that rise through a batch, or consecutive steps with disjoint classes."""

    for losses in _of_each(health):
        recorded = [(loss, labels, full_values(labels)) for loss, labels in losses]
        counted = [(loss, labels, x[x != loss.ignored].ravel()) for loss, labels, x in recorded if x is not None]
        for loss, labels, x in counted:
            is_long = len(labels.shape) == 1 and len(x) >= SORTED and len(np.unique(x)) >= KINDS
            if is_long and (np.diff(x.astype(np.int64)) >= 0).all():
                yield Found(labels, f"{len(x)} labels rise through the batch", step=loss.step.index)
                return
        sets = [(loss, labels, {*x.tolist()}) for loss, labels, x in counted if len(x) >= KINDS * loss.classes]
        for (_, _, before), (loss, labels, after) in zip(sets, sets[1:]):
            if not before & after:
                yield Found(labels, "this step shares no class with the preceding step", step=loss.step.index)
                return


@rule(
    "label.range",
    "error",
    "figures, losses",
    says="a label is not the number of a class",
    remedy="check the labels and the number of outputs",
    source="guides of MindSpore; DeepDiagnosis",
)
def out_of_range(health: Health, limit: Optional[float]) -> Finds:
    """Report a label of C or more, or below 0; the ignored label is allowed."""
    for losses in _of_each(health):
        for loss, labels in losses:
            low, high, values = labels.figures.minimum, labels.figures.maximum, full_values(labels)
            if values is not None:
                counted = values[values != loss.ignored]
                low, high = (float(counted.min()), float(counted.max())) if counted.size else (None, None)
            elif low == loss.ignored:
                low = None
            if high == loss.ignored:
                high = None
            if high is not None and high >= loss.classes:
                yield Found(labels, f"label {high:g} with {loss.classes} classes", high, step=loss.step.index)
                break
            if low is not None and low < 0:
                yield Found(labels, f"label {low:g}", low, step=loss.step.index)
                break


@rule(
    "label.none",
    "error",
    "figures, losses",
    says="all labels are ignored, so the loss is NaN",
    remedy="check how labels are masked",
    source="brief of this tool",
)
def none(health: Health, limit: Optional[float]) -> Finds:
    """Report labels that are all `ignore_index`, -100 by default."""
    for losses in _of_each(health):
        for loss, labels in losses:
            if labels.figures.constant == loss.ignored:
                words = f"all {labels.figures.elements} labels are {loss.ignored}, which is ignored"
                yield Found(labels, words, float(loss.ignored), step=loss.step.index)
                break


@rule(
    "label.imbalance",
    "hint",
    "values, losses",
    10.0,
    "classes differ widely in size",
    "weight the classes, or sample them evenly",
    "SageMaker ClassImbalance (10, 500 samples); 37 reasons #8",
)
def imbalance(health: Health, limit: float) -> Finds:
    """Compare class sizes with at least 500 labels over all steps, and on average twenty per class: words of a language
    are never balanced."""

    for losses in _of_each(health):
        recorded = [(loss, x) for loss, labels in losses if (x := full_values(labels)) is not None]
        every: Any = np.concatenate([x[x != loss.ignored].ravel() for loss, x in recorded]) if recorded else ()
        loss, labels = losses[0]
        if len(every) < max(MANY, OF_EACH * loss.classes):
            continue
        kinds, counts = np.unique(every, return_counts=True)
        times = float(counts.max() / counts.min())
        if times > limit:
            words = (
                f"class {kinds[counts.argmax()]} occurs {times:.3g} times as often as class {kinds[counts.argmin()]}"
            )
            yield Found(labels, words, times, step=loss.step.index, limit=limit, unit="times")
