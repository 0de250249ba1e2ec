"""Comparison of tensors without values, by the checksums and statistics that the dumps recorded."""

from __future__ import annotations

import math
from itertools import chain, repeat
from typing import Any, Optional, Sequence

from npucmp.model import Measurement, Pair, Side, Statistics, TensorRef
from npucmp.model.dtypes import MOST, lookup

# of a sum in float32: evidence: right within this for up to SUMMED_WELL elements, in any order (lost_in_norm)
SUMS_SLACK = 2.0**-17
SUMMED_WELL = 2**18  # elements: evidence: norms of torch on a CPU (lost_in_norm)
Array = Any  # numpy is imported when it is needed
_BOTH, _ONE_SIDE = (True, True), {(True, False), (False, True)}


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


def least_error(target: TensorRef, golden: TensorRef) -> Optional[float]:
    """lower_bound without the part that masks decide. If the minima are masks of two types and other values exist, the
    minima are ignored: such masks agree, as in a comparison of values. Masks of equal value add nothing to any
    difference."""
    x, y = target.statistics, golden.statistics
    types = (lookup(target.dtype), lookup(golden.dtype)) if target.dtype != golden.dtype else (None, None)
    if x and y and types[0] and types[1]:
        from npucmp.measure.kernel.mask_values import masks_of

        masks = masks_of(*types)
        alone = x.min == x.max or y.min == y.max
        if x.min in masks.target and y.min in masks.golden and x.min != y.min and not alone:
            x, y = Statistics(max=x.max), Statistics(max=y.max)
    return lower_bound(x, y, math.prod(target.shape), target.rounding + golden.rounding)


def lower_bound(
    target: Optional[Statistics], golden: Optional[Statistics], elements: int, rounding: float = 0.0
) -> Optional[float]:
    """A proven lower bound of rel_l2 = ‖x-y‖/‖y‖ from recorded statistics; None if they prove nothing.

    |‖x‖-‖y‖| ≤ ‖x-y‖ and |mean x - mean y|·√n ≤ ‖x-y‖ always hold; so do |max x - max y| ≤ ‖x-y‖ and the same for the
    minima. If ‖y‖ was not recorded, its upper bound replaces it. NaN or Inf on one side only yields inf. The loss of a
    sum in float32 is subtracted from a difference of norms, and the rounding of the dump from all differences.
    """
    if target is None or golden is None:
        return None
    weights = (1.0, 1.0, math.sqrt(min(elements, MOST)), 1.0)
    together = [(a, b, w) for a, b, w in zip(target, golden, weights) if a is not None and b is not None]
    finite: list[tuple[bool, bool]] = []
    if len(together) < len(weights) or not math.isfinite(sum([a + b for a, b, _ in together])):  # rare
        finite = [(math.isfinite(a), math.isfinite(b)) for a, b, _ in together]
        extremes = sum(a is not None and b is not None for a, b in zip(target[:2], golden[:2]))
        if _ONE_SIDE.intersection(finite[:extremes] or finite):
            return math.inf  # a norm alone may have overflowed in its own type
    errors = [max(0.0, abs(a - b) - rounding) * w for a, b, w in together if a != b]
    if elements > SUMMED_WELL and target.norm != golden.norm and target.norm is not None and golden.norm is not None:
        errors[-1] = max(0.0, errors[-1] - lost_in_norm(elements) * max(target.norm, golden.norm))
    if not together or finite.count(_BOTH) < len(finite):
        return 0.0 if together and not errors else None
    norm, largest = _most_norm(golden, elements), max(errors, default=0.0)
    if norm is None:
        return None if largest else 0.0
    return largest / (norm + rounding) if norm + rounding else (math.inf if largest else 0.0)


def lower_bounds(
    target: Sequence[Statistics], golden: Sequence[Statistics], elements: Sequence[int], rounding: Sequence[float]
) -> list[Optional[float]]:
    """lower_bound of many pairs with all four statistics recorded; the results are bitwise equal."""
    import numpy as np

    x, y = (np.fromiter(chain.from_iterable(one), np.float64, 4 * len(one)).reshape(-1, 4) for one in (target, golden))
    sizes = {one: float(min(one, MOST)) for one in {*elements}}
    bounds, is_odd = bounds_of(x, y, np.array([*map(sizes.__getitem__, elements)]), np.array(rounding, np.float64))
    found: list[Optional[float]] = bounds.tolist()
    for at in np.flatnonzero(is_odd).tolist():
        found[at] = lower_bound(target[at], golden[at], elements[at], rounding[at])
    return found


def bounds_of(x: Array, y: Array, elements: Array, rounding: Array) -> tuple[Array, Array]:
    """Return the lower bounds of pairs (float64) from their figures (pairs, 4), and whether other rules apply to a
    pair: to NaN and infinities. `elements` are at most MOST."""
    import numpy as np

    with np.errstate(all="ignore"):
        total = np.zeros(len(x))
        for both in (x + y).T:
            total = total + both
        errors = np.abs(x - y) - rounding[:, None]
        errors[errors < 0.0] = 0.0
        errors[:, 2] *= np.sqrt(elements)
        errors[x == y] = 0.0
        share = elements / SUMMED_WELL
        share = SUMS_SLACK * (np.maximum(1.0, share * np.sqrt(share)) - 1.0)
        less = np.maximum(0.0, errors[:, 3] - share * np.maximum(x[:, 3], y[:, 3]))
        is_long = (elements > SUMMED_WELL) & (x[:, 3] != y[:, 3])
        errors[:, 3] = np.where(is_long, less, errors[:, 3])
        largest, norm = errors.max(axis=1), y[:, 3] + rounding
        bounds = np.where(norm != 0.0, largest / norm, np.where(largest != 0.0, math.inf, 0.0))
        return bounds, ~np.isfinite(total) | np.isnan(bounds)


def measured_by_record(pairs: Sequence[Pair]) -> list[Optional[Measurement]]:
    """The measurements of pairs of one type and shape for which the dumps recorded only the four statistics; None for
    all other pairs."""
    found: list[Optional[Measurement]] = [None] * len(pairs)
    places = [at for at, pair in enumerate(pairs) if _is_plain(pair)]
    if not places:
        return found
    recorded = [pairs[at] for at in places]
    sides: list[Any] = [(pair.target, pair.golden) for pair in recorded]
    statistics = [(target.statistics, golden.statistics) for target, golden in sides]
    shapes = [golden.shape for _, golden in sides]
    sizes = {shape: math.prod(shape) for shape in {*shapes}}
    bounds = lower_bounds(
        [one for one, _ in statistics],
        [one for _, one in statistics],
        [*map(sizes.__getitem__, shapes)],
        [target.rounding + golden.rounding for target, golden in sides],
    )
    defaults = {name: repeat(value) for name, value in Measurement._field_defaults.items()}
    columns = {"pair": recorded, **defaults, "bound": bounds, "statistics": statistics}
    for at, one in zip(places, map(Measurement._make, zip(*columns.values()))):
        found[at] = one
    return found


def _is_plain(pair: Pair) -> bool:
    """Return whether two tensors have one type and shape, and the dumps recorded the four statistics of both, but
    neither values nor checksums."""
    target, golden = pair.target, pair.golden
    if target is None or golden is None or target.dtype != golden.dtype or target.shape != golden.shape:
        return False
    x, y = target.statistics, golden.statistics
    if x is None or y is None or None in x or None in y or 0 in golden.shape:
        return False
    if target.file or target.problem or target.checksum or target.payload:
        return False
    return not (golden.file or golden.problem or golden.checksum or golden.payload)


def lost_in_norm(elements: int) -> float:
    """The relative error by which a recorded norm of many elements may be too small.

    Source: torch.norm of float32 on a CPU adds squares in 8 partial sums. With 2^20, 2^22, 2^24, 2^26 and 2^27 normal
    numbers it was 1.1e-5, 8.3e-5, 6.5e-4, 5.1e-3 and 1.4e-2 too small (torch 2.13), with cubes of such numbers up to 5
    times as much, with 2^16 numbers 4e-8. Means, in a cascade of sums, were within 5e-8. Devices add in trees.
    """
    many = min(elements, MOST) / SUMMED_WELL
    return SUMS_SLACK * (max(1.0, many * math.sqrt(many)) - 1.0)


def _most_norm(one: Statistics, elements: int) -> Optional[float]:
    """An upper bound of the L2 norm: the recorded norm, or √n times the largest magnitude; None if unknown."""
    if one.norm is not None and math.isfinite(one.norm):
        return one.norm
    if one.max is None or one.min is None or not 0 < elements <= MOST:
        return None
    norm = math.sqrt(elements) * max(abs(one.max), abs(one.min))
    return norm if math.isfinite(norm) else None
