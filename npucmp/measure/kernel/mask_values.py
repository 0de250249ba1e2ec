"""Masks: positions where both sides have "minus infinity" as a finite number. This module alone decides which they are.

Such a value dominates every norm, so masked positions are left out. During the first reading of a tensor its neighbours
are unknown, and only constants identify a mask: both sides have one of VALUES, exactly as the type rounds it. In one
type the bits are equal. Two types have different masks (-65504, or -1e4 where the other has -1e9), and each of OWN then
equals all others. Once all tensors are known, hidden_masks.py finds masks of any constant: every value below
`unseen_bounds` on both sides. A single mask, or a tensor with nothing else, is not masked (measure/pairs.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npucmp.model import Moments, Side
from npucmp.model.dtypes import DTYPES, Dtype, narrower, numpy_dtype
from npucmp.model.moments import SHORT_BITS

VALUES = (1e4, 65504.0, 1e5, 1e6, 1e8, 1e9, 1e10, 1e12, 1e15, 1e20, 1e30)  # and half the largest value, and beyond
OWN = (1e4, 1e5, 1e9)  # and the largest value, and half of it
MASK_DISTANCE = 100.0  # below all other values: definition: exp(-100) is 0 beside 1 in float32
PART = 4.0  # masks are below this part of the lowest value: -1e9 plus a second mask or scores
NONE_UNSEEN = (-np.inf, -np.inf)


class Masks(NamedTuple):
    """The masks of a pair of types.

    `highest` is the greatest of them. Equal values of both sides are a mask if they are at most `bound`, or in
    `values`. `target` and `golden` are the masks of each type that need not be equal, empty if the types are the same.
    `unseen` are bounds of target and golden: two values below both bounds are a mask.
    """

    highest: float = -np.inf
    bound: float = -np.inf
    values: tuple[float, ...] = ()
    target: tuple[float, ...] = ()
    golden: tuple[float, ...] = ()
    unseen: tuple[float, float] = NONE_UNSEEN

    def where_equal(self, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return where two float64 arrays have the same mask."""
        found: npt.NDArray[np.bool_] = (x == y) & ((x <= self.bound) | _among(x, self.values))
        if self.unseen != NONE_UNSEEN:
            found |= (x <= self.unseen[0]) & (y <= self.unseen[1])
        return found | (_among(x, self.target) & _among(y, self.golden)) if self.target else found


def _among(x: npt.NDArray[Any], values: tuple[float, ...]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(x), dtype=bool)
    for value in values:
        found |= x == value
    return found


@cache
def masks_of(target: Dtype, golden: Dtype) -> Masks:
    """Return the masks of two types. There are none for integers and complex numbers, nor for types that do not reach
    -1e4, whose lowest value is saturation."""
    if not target.kind == golden.kind == "f" or min(target.largest, golden.largest) < VALUES[0]:
        return Masks()
    coarse = narrower(target, golden)
    values, bound = _rounded_limits(VALUES, coarse), -coarse.largest / 2
    own = ((), ()) if target == golden else [_own(one) for one in (target, golden)]
    return Masks(max(bound, *values, *own[0], *own[1]), bound, values, *own)


def unseen_bounds(moments: Moments) -> tuple[float, float]:
    """The bounds of target and golden below which they have masks, if any."""
    target, golden = (min(one.maximum - MASK_DISTANCE, one.minimum / PART) for one in (moments.target, moments.golden))
    return target, golden


def may_hold_masks(moments: Moments) -> bool:
    """Return whether the extremes of both sides leave room for masks, or both are one constant, which may be a fill
    value."""
    sides = moments.target, moments.golden
    if all(one.minimum == one.maximum <= -MASK_DISTANCE for one in sides):
        return True
    return all(
        (one.minimum <= bound or one.neginf) and bound < 0.0 for one, bound in zip(sides, unseen_bounds(moments))
    )


def all_others_in_range(moments: Moments) -> bool:
    """Return whether masks exist, and the sums of squares show that nothing else is below the bounds of masks."""
    x, y = unseen_bounds(moments)
    return moments.masked > 0 and moments.xx < x * x and moments.yy < y * y


def are_rounded(target: Side, golden: Side) -> bool:
    """Return whether float32 tensors contain 16-bit values, and the minimum of both is a mask rounded to such a
    type."""
    if target.minimum != golden.minimum or not 0 < max(target.bits, golden.bits) <= max(SHORT_BITS):
        return False
    return any(target.minimum in _own(DTYPES[name]) for name in ("bfloat16", "float16"))


def _own(dtype: Dtype) -> tuple[float, ...]:
    return _rounded_limits((dtype.largest, dtype.largest / 2, *OWN), dtype)


def _rounded_limits(sizes: tuple[float, ...], dtype: Dtype) -> tuple[float, ...]:
    """The negative of each number that a type can represent, rounded to the type."""
    representable = [size for size in sizes if size <= dtype.largest]
    wide = np.array(representable, np.float32 if dtype.itemsize < 4 else np.float64)
    return tuple((-wide.astype(numpy_dtype(dtype.name)).astype(np.float64)).tolist())
