"""Rules of input data: constant, repeated or unnormalised inputs."""

from __future__ import annotations

import math
from typing import Iterator, Optional

import numpy as np

from npucmp.health.facts import Health, Tensor
from npucmp.health.rule import Found, rule
from npucmp.health.rules.locations import data_in, full_values, is_float, is_whole
from npucmp.model.optypes import op_type_of

Finds = Iterator[Found]
PIXELS = (16.0, 255.0)  # range of the largest value of unnormalised images
CHANNELS = (1, 3, 4)
FEWEST = 4  # fewest samples of a verdict


@rule(
    "input.nonfinite",
    "error",
    "figures, inputs",
    says="the input data hold NaN or Inf: values may be missing",
    remedy="check the data that was read",
    source="guides of MindSpore; UMLAUT",
)
def nonfinite(health: Health, limit: Optional[float]) -> Finds:
    """Examine data only: masks hold infinities on purpose."""
    for tensors in data_in(health).values():
        for step, one in tensors:
            x = one.figures.extremes
            if x is not None and (x.nan or x.inf):
                yield Found(one, f"holds {'NaN' if x.nan else 'Inf'}", step=step)
                break


@rule(
    "input.constant",
    "warning",
    "figures, inputs",
    says="the network's input is constant",
    remedy="check the output of the data pipeline",
    source="37 reasons #1",
)
def constant(health: Health, limit: Optional[float]) -> Finds:
    """Examine data only: token types and positions may be constant, and no layer reads masks of ones. If other data
    vary, a constant input of 0 is an initial state or a buffer to be filled. No clean run has it."""
    data = data_in(health)
    varies = any(one.figures.constant is None for tensors in data.values() for _, one in tensors)
    for place, tensors in enumerate(data.values()):
        for step, one in tensors:
            if (place or varies) and not op_type_of(one.operator).has("contracts", "normalises"):
                break
            value = one.figures.constant
            if value is not None and one.figures.elements > 1 and not (varies and value == 0):
                yield Found(one, f"all {one.figures.elements:,} elements are {value:g}", value, step=step)
                break


def _samples(one: Tensor) -> tuple[bytes, ...]:
    """A digest of each sample; () if unknown, or if all elements are equal."""
    return (one.found.get("samples") or ()) if one.figures.constant is None else ()


@rule(
    "input.same_samples",
    "warning",
    "values, inputs",
    says="all samples of the batch are identical",
    remedy="check the output of the data pipeline",
    source="37 reasons #1 #3",
)
def same_samples(health: Health, limit: Optional[float]) -> Finds:
    """Report samples with equal bits, unless all their elements are equal. If other data differ between samples, an
    input that is equal in all steps is a constant expanded over the batch. No clean run has it."""
    data = data_in(health)
    differ = any(len({*_samples(one)}) > 1 for tensors in data.values() for _, one in tensors)
    for tensors in data.values():
        bits = {one.figures.bits for _, one in tensors}
        if differ and len(bits) == 1:
            continue
        for step, one in tensors:
            samples = _samples(one)
            if len(samples) > 1 and len({*samples}) == 1:
                yield Found(one, f"all {len(samples)} samples have the same bits", step=step)
                break


@rule(
    "input.duplicates",
    "hint",
    "values, inputs",
    0.2,
    "samples of a batch occur twice",
    "check the sampler, and the data for duplicates",
    "37 reasons #1",
)
def duplicates(health: Health, limit: float) -> Finds:
    """Examine samples of at least eight elements only: shorter ones coincide by chance."""
    for tensors in data_in(health).values():
        for step, one in tensors:
            samples = _samples(one)
            twice = len(samples) - len({*samples})
            if len({*samples}) > 1 and twice > limit * len(samples) and math.prod(one.shape[1:]) >= 8:
                share = 100 * twice / len(samples)
                yield Found(one, f"{twice} of {len(samples)} samples repeat another sample", share, step=step,
                            limit=100 * limit, unit="%")  # fmt: skip
                break


@rule(
    "input.repeated",
    "warning",
    "bits, steps, inputs",
    says="all steps read the same batch",
    remedy="check the sampler; for a test of overfitting, set expect.repeated_input = true",
    source="37 reasons #1",
)
def repeated(health: Health, limit: Optional[float]) -> Finds:
    """Report equal data in all steps. Silent if no parameter moved: the step was repeated, or the run is inference.
    Silent for constants if other data change, such as tables of positions that were expanded over the batch."""
    moved = [one.same_bits() for one in health.parameters]
    if health.expect.get("repeated_input") or (moved and False not in moved):
        return
    data = [column for column in data_in(health).values() if column[0][1].figures.constant is None]
    bits = [[one.figures.bits for _, one in column] for column in data]
    if any(len({*column}) > 1 for column in bits):
        return
    for tensors, column in zip(data, bits):
        if len(column) == len(health.steps) and all(column):
            yield Found(tensors[0][1], f"has the same bits in {len(column)} steps", step=tensors[0][0])


def _is_image(one: Tensor) -> bool:
    return len(one.shape) == 4 and bool({one.shape[1], one.shape[3]} & {1, 3})


def _is_raw(one: Tensor) -> bool:
    low, high = one.figures.minimum, one.figures.maximum
    return _is_image(one) and low is not None and high is not None and low >= 0 and PIXELS[0] < high <= PIXELS[1]


@rule(
    "input.raw_pixels",
    "warning",
    "figures, inputs",
    says="image values lie in [0, 255]",
    remedy="divide by 255, then subtract the mean and divide by the deviation",
    source="guides of MindSpore; UMLAUT; SageMaker CheckInputImages; 37 reasons #12",
)
def raw_pixels(health: Health, limit: Optional[float]) -> Finds:
    """Report images in [0, 255]. Images in [0, 1] are not reported: published rules fire on 21 of 22 clean image
    runs."""
    for tensors in data_in(health).values():
        step, one = tensors[0]
        if _is_raw(one):
            yield Found(
                one, f"values {one.figures.minimum:g} to {one.figures.maximum:g}", one.figures.maximum, step=step
            )


@rule(
    "input.scale",
    "hint",
    "figures, inputs",
    10.0,
    "the input is not standardised",
    "subtract its mean and divide by its deviation",
    "guides of MindSpore; 37 reasons #12; DL4J",
)
def scale(health: Health, limit: float) -> Finds:
    """Report floats with a deviation above 10 or below 0.001, or a mean of more than 10 deviations. Images in [0, 255]
    are left to input.raw_pixels."""
    for tensors in data_in(health).values():
        step, one = tensors[0]
        x = one.figures
        if not is_float(one) or _is_raw(one) or x.std is None or x.mean is None or x.constant is not None:
            continue
        if x.std > limit or x.std < 1e-3 or abs(x.mean) > limit * x.std:
            yield Found(one, f"mean {x.mean:.3g}, deviation {x.std:.3g}", x.std, step=step)


@rule(
    "input.feature_scales",
    "hint",
    "values, inputs",
    100.0,
    "features of the input differ by orders of magnitude",
    "standardise each feature",
    "guides of MindSpore: orders of magnitude between dimensions",
)
def feature_scales(health: Health, limit: float) -> Finds:
    """Compare the largest with the median deviation of the columns of a table with at least four samples."""

    for tensors in data_in(health).values():
        step, one = tensors[0]
        values = full_values(one)
        if values is None or not is_float(one) or values.ndim != 2 or len(values) < FEWEST:
            continue
        with np.errstate(all="ignore"):
            spread = np.std(values.astype(np.float64), axis=0)
        at, typical = int(np.argmax(spread)), float(np.median(spread))
        times = float(spread[at]) / typical if typical else 0.0
        if math.isfinite(times) and times > limit:
            words = f"feature {at} varies {times:.3g} times as much as the median feature"
            yield Found(one, words, times, step=step, limit=limit, unit="times")


@rule(
    "input.outlier",
    "hint",
    "figures, inputs",
    100.0,
    "one value of the input lies far from all others",
    "check the data for outliers",
    "guides of MindSpore: dataset problem 3",
)
def outlier(health: Health, limit: float) -> Finds:
    """Report the largest distance from the mean, in deviations of all values."""
    for tensors in data_in(health).values():
        for step, one in tensors:
            x = one.figures
            if not is_float(one) or not x.std or x.mean is None or x.minimum is None or x.maximum is None:
                continue
            far = max(x.maximum - x.mean, x.mean - x.minimum) / x.std
            if far > limit:
                yield Found(one, f"a value lies {far:.3g} deviations from the mean", far, step=step)
                break


@rule(
    "input.layout",
    "hint",
    "inputs",
    says="an NCHW network reads NHWC images, or height and width are swapped",
    remedy="permute the axes",
    source="37 reasons #1 #25; UMLAUT",
)
def layout(health: Health, limit: Optional[float]) -> Finds:
    """Report images if the weight of their convolution expects the channels of axis 1, that number is unusual for
    images, and the last axis has a usual number of channels (1, 3 or 4)."""
    for tensors in data_in(health).values():
        step, one = tensors[0]
        reader = next((op for op in health.steps[step].forward if op.operator is one.operator), None)
        if len(one.shape) != 4 or reader is None or not reader.type.has("contracts"):
            continue
        weight = next((w for w in reader.inputs if w is not one and len(w.shape) == 4), None)
        channels, columns = one.shape[1], one.shape[3]
        if weight is not None and weight.shape[1] == channels and channels not in CHANNELS and columns in CHANNELS:
            yield Found(one, f"shape {list(one.shape)}: {channels} channels and {columns} columns", step=step)


@rule(
    "input.padding",
    "hint",
    "values, inputs",
    0.9,
    "most tokens are padding",
    "batch texts of similar length together",
    "SageMaker NLPSequenceRatio 50 %",
)
def padding(health: Health, limit: float) -> Finds:
    """Report the share of the most frequent token."""

    for tensors in data_in(health).values():
        step, one = tensors[0]
        values = full_values(one)
        if values is None or not is_whole(one) or values.ndim < 2 or one.figures.constant is not None:
            continue
        kinds, counts = np.unique(values, return_counts=True)
        share = float(counts.max() / values.size)
        if share > limit:
            words = f"{share:.0%} of the tokens are {int(kinds[counts.argmax()])}"
            yield Found(one, words, 100 * share, step=step, limit=100 * limit, unit="%")


@rule(
    "input.mask_empty",
    "warning",
    "values, inputs",
    says="a sample is masked entirely",
    remedy="remove empty samples",
    source="brief of this tool",
)
def mask_empty(health: Health, limit: Optional[float]) -> Finds:
    """Examine masks of zeros and ones by sample and position whose nonempty rows begin with 1. Token types look alike,
    but begin with 0."""
    for step in health.steps:
        for one in step.inputs:
            values = None if is_float(one) or len(one.shape) != 2 or min(one.shape) < 2 else full_values(one)
            if values is None or (one.figures.minimum, one.figures.maximum) != (0, 1):
                continue
            nonempty = values.any(axis=1)
            if not nonempty.all() and values[nonempty][:, 0].all():
                row = int((~nonempty).argmax())
                yield Found(one, f"all elements of sample {row} are 0", float(row), step=step.index)
                return
