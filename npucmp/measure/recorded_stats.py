"""Comparison of tensors without values, by the checksums and statistics that the dumps recorded."""

from __future__ import annotations

import math
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Optional, Sequence

import numpy as np

from npucmp.model import Measurement, Pair, Side, Statistics, TensorRef
from npucmp.model.dtypes import MOST, lookup

if TYPE_CHECKING:
    from numpy.typing import NDArray

# of a sum in float32: evidence: right within this for up to SUMMED_WELL elements, in any order (lost_in_norm)
SUMS_SLACK = 2.0**-17
SUMMED_WELL = 2**18  # elements: evidence: norms of torch on a CPU (lost_in_norm)
FIGURES = 4  # of a tensor: definition: Statistics
# unit round-offs: chosen: by more than this and SUMS_SLACK, statistics contradict equal checksums, not measured
CONTRADICTION = 8.0


def equal_by_record(target: TensorRef, golden: TensorRef) -> Optional[bool]:
    """Return whether two tensors of one shape are equal; None if their checksums do not prove it.

    Checksums of different algorithms, or over different types, prove nothing. An XOR proves only a difference.
    """
    if 0 in target.shape:
        return True
    if not target.checksum or len(target.checksum) != len(golden.checksum) or target.dtype != golden.dtype:
        return None
    if target.has_xor and golden.has_xor:
        return None if target.checksum.lower() == golden.checksum.lower() else False
    return target.digest == golden.digest if target.digest and golden.digest else None


def has_equal_xor(pair: Pair) -> bool:
    """Return whether both tensors of a pair without a known difference have the same XOR, or one has an XOR and the
    other has values: an equal XOR proves nothing."""
    target, golden = pair.target, pair.golden
    if target is None or golden is None or target.dtype != golden.dtype:
        return False
    if target.has_xor and golden.has_xor:
        return target.checksum.lower() == golden.checksum.lower()
    one, other = (target, golden) if target.has_xor else (golden, target)
    return one.has_xor and not other.checksum and bool(other.file or other.payload)


def statistics_of(side: Side, elements: int) -> Statistics:
    """The statistics of values as msprobe records them, in float64. A NaN makes all four NaN. An infinity becomes the
    maximum or minimum, and makes mean and norm infinite or NaN."""
    if side.nan:
        return Statistics(math.nan, math.nan, math.nan, math.nan)
    if not elements:
        return Statistics()
    if not side.inf:
        return Statistics(side.maximum, side.minimum, side.total / elements, math.sqrt(side.squares))
    infinite = [math.inf] * bool(side.posinf) + [-math.inf] * bool(side.neginf)
    finite = [side.maximum, side.minimum] if side.inf < elements else []
    return Statistics(max(infinite + finite), min(infinite + finite), sum(infinite), math.inf)


def lower_bounds(
    target: Sequence[Optional[Statistics]],
    golden: Sequence[Optional[Statistics]],
    elements: Sequence[int],
    rounding: Sequence[float],
) -> list[Optional[float]]:
    """Proven lower bounds of rel_l2 = ‖x-y‖/‖y‖ of pairs from recorded statistics; None if they prove nothing.

    |‖x‖-‖y‖| ≤ ‖x-y‖ and |mean x - mean y|·√n ≤ ‖x-y‖ always hold; so do |max x - max y| ≤ ‖x-y‖ and the same for the
    minima. If ‖y‖ was not recorded, its upper bound replaces it: √n times the largest magnitude. A NaN or Inf on one
    side only yields inf; if a maximum or minimum is recorded, there only: a norm alone may have overflowed in its own
    type. The loss of a sum in float32 is subtracted from a difference of norms, and the rounding of the dump from all
    differences.
    """

    (x, in_x), (y, in_y) = _figures(target), _figures(golden)
    sizes = {count: min(count, 2 * MOST) for count in {*elements}}
    many, lost = (np.array(column, np.float64) for column in ([*map(sizes.__getitem__, elements)], rounding))
    bounds, is_proven = bounds_of(x, y, in_x, in_y, many, lost)
    found: list[Optional[float]] = bounds.tolist()
    for at in np.flatnonzero(~is_proven).tolist():
        found[at] = None
    return found


def bounds_of(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    in_x: NDArray[np.bool_],
    in_y: NDArray[np.bool_],
    many: NDArray[np.float64],
    lost: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the bounds of `lower_bounds` (pairs), and whether the figures prove them. x, y: figures (pairs, 4), of
    which in_x, in_y are recorded; many: numbers of elements; lost: rounding of the figures."""

    has_norm, many = in_y[:, :2].all(axis=1) & (many > 0.0) & (many <= MOST), np.minimum(many, MOST)
    is_recorded, root = in_x & in_y, np.sqrt(many)
    is_finite = np.isfinite(x), np.isfinite(y)
    is_one_sided, differs = is_recorded & (is_finite[0] ^ is_finite[1]), is_recorded & (x != y)
    is_one_sided[:, 2:] &= ~is_recorded[:, :2].any(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        errors = np.where(differs, np.fmax(np.abs(x - y) - lost[:, None], 0.0), 0.0)
        errors[:, 2] *= root
        less = np.maximum(0.0, errors[:, 3] - lost_in_norm(many) * np.maximum(x[:, 3], y[:, 3]))
        errors[:, 3] = np.where(differs[:, 3] & (many > SUMMED_WELL), less, errors[:, 3])
        high, low = np.abs(y[:, :2]).T
        norm = np.where(is_finite[1][:, 3], y[:, 3], root * np.where(low > high, low, high))
        has_norm = np.isfinite(norm) & (has_norm | is_finite[1][:, 3])
        largest, norm = errors.max(axis=1), norm + lost
        bounds = np.where(norm != 0.0, largest / norm, np.where(largest != 0.0, math.inf, 0.0))
    is_void = (is_recorded & ~(is_finite[0] & is_finite[1])).any(axis=1)
    proves = np.where(is_void, ~differs.any(axis=1), has_norm | (largest == 0.0)) & is_recorded.any(axis=1)
    bounds[is_void | ~has_norm] = 0.0
    is_infinite = is_one_sided.any(axis=1)
    bounds[is_infinite] = math.inf
    return bounds, proves | is_infinite


def _figures(statistics: Sequence[Optional[Statistics]]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The four figures of each tensor, NaN if one is missing, and which are recorded."""

    figures = [*chain.from_iterable(Statistics() if one is None else one for one in statistics)]
    values = np.array(figures, np.float64).reshape(-1, FIGURES)
    is_recorded = ~np.isnan(values)
    if not is_recorded.all():
        is_recorded = np.array([figure is not None for figure in figures]).reshape(-1, FIGURES)
    return values, is_recorded


def measured_by_record(pairs: Sequence[Pair]) -> list[Optional[Measurement]]:
    """The measurements of pairs of one shape for which the dumps recorded no values; None for all other pairs."""
    found: list[Optional[Measurement]] = [None] * len(pairs)
    places = [at for at, pair in enumerate(pairs) if _has_no_values(pair)]
    for at, measurement in zip(places, measure_records([pairs[at] for at in places])):
        found[at] = measurement
    return found


def _has_no_values(pair: Pair) -> bool:
    target, golden = pair.target, pair.golden
    if target is None or golden is None or target.shape != golden.shape:
        return False
    return not (target.file or target.problem or target.payload or golden.file or golden.problem or golden.payload)


def measure_records(pairs: Sequence[Pair]) -> list[Measurement]:
    """Measure pairs of alike shapes by checksums and statistics alone."""
    sides: list[Any] = [(pair.target, pair.golden) for pair in pairs]
    statistics = [(target.statistics, golden.statistics) for target, golden in sides]
    compared = [
        both if target.dtype == golden.dtype else _without_masks(target, golden)
        for both, (target, golden) in zip(statistics, sides)
    ]
    sizes = {shape: math.prod(shape) for shape in {target.shape for target, _ in sides}}
    bounds = lower_bounds(
        [x for x, _ in compared],
        [y for _, y in compared],
        [sizes[target.shape] for target, _ in sides],
        [target.rounding + golden.rounding for target, golden in sides],
    )
    same = [equal_by_record(target, golden) for target, golden in sides]
    for at, is_same in enumerate(same):
        if is_same is None:
            continue
        bound = bounds[at]
        if is_same and bound is not None and bound > SUMS_SLACK + CONTRADICTION * _round_off(sides[at][0]):
            same[at] = None  # statistics that differ contradict equal hashes
        else:
            bounds[at] = None
    defaults = {name: repeat(value) for name, value in Measurement._field_defaults.items()}
    columns = {"pair": pairs, **defaults, "bound": bounds, "same": same, "statistics": statistics}
    return [*map(Measurement._make, zip(*columns.values()))]


def _without_masks(target: TensorRef, golden: TensorRef) -> tuple[Optional[Statistics], Optional[Statistics]]:
    """The statistics of tensors of two types. If the minima are masks of these types and other values exist, only the
    maxima: such masks agree, as in a comparison of values. Masks of equal value add nothing to any difference."""
    x, y = target.statistics, golden.statistics
    types = lookup(target.dtype), lookup(golden.dtype)
    if x and y and types[0] and types[1]:
        from npucmp.measure.kernel.mask_values import masks_of

        masks = masks_of(*types)
        alone = x.min == x.max or y.min == y.max
        if x.min in masks.target and y.min in masks.golden and x.min != y.min and not alone:
            return Statistics(max=x.max), Statistics(max=y.max)
    return x, y


def _round_off(tensor: TensorRef) -> float:
    """The unit round-off of the type in which statistics of a tensor may be recorded, 0 for integers."""
    row = lookup(tensor.dtype)
    return row.round_off if row is not None and row.kind == "f" else 0.0


def lost_in_norm(elements: NDArray[np.float64]) -> NDArray[np.float64]:
    """The relative error by which a recorded norm of many elements may be too small.

    Source: torch.norm of float32 on a CPU adds squares in 8 partial sums. With 2^20, 2^22, 2^24, 2^26 and 2^27 normal
    numbers it was 1.1e-5, 8.3e-5, 6.5e-4, 5.1e-3 and 1.4e-2 too small (torch 2.13), with cubes of such numbers up to 5
    times as much, with 2^16 numbers 4e-8. Means, in a cascade of sums, were within 5e-8. Devices add in trees.
    """
    share = elements / SUMMED_WELL
    return SUMS_SLACK * ((share * share**0.5).clip(min=1.0) - 1.0)
