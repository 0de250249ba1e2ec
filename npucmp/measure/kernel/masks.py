"""What stands for minus infinity in a type that is to hold numbers: attention writes it over scores that do not count.

In the norms such a value swallows everything else, so that positions where both sides hold the same one are left out.
Only the same: what is merely near it is a number as any other. In one type it is the same bits; two types have masks
of their own (-65504, or -1e4 where the other has -1e9), and there each of OWN, exactly as its type rounds it, stands
for all of them. Where an exponential reads a tensor, what it cannot see is a mask whatever its value is; attention.py
says below which bounds that is. Whether a tensor has masks at all is seen when all of it is known (measure/pairs.py):
what stands once, or with nothing beside it, masks nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npucmp.model.dtypes import Dtype, narrower, numpy_dtype

VALUES = (1e4, 65504.0, 1e5, 1e6, 1e8, 1e9, 1e10, 1e12, 1e15, 1e20, 1e30)  # and half the largest value, and beyond
OWN = (1e4, 1e5, 1e9)  # and the largest value, and half of it
NONE_UNSEEN = (-np.inf, -np.inf)


class Masks(NamedTuple):
    """The masks of a pair of types.

    `highest` is the greatest of them. What is equal on both sides is one if it is `bound` or below, or in `values`;
    `target` and `golden` are those of each type that need not be equal, none where the types are the same. `unseen` are
    bounds of target and golden: what is below both is a mask of any value.
    """

    highest: float = -np.inf
    bound: float = -np.inf
    values: tuple[float, ...] = ()
    target: tuple[float, ...] = ()
    golden: tuple[float, ...] = ()
    unseen: tuple[float, float] = NONE_UNSEEN

    def held(self, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Where two float64 arrays hold the same mask."""
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
    """None for whole and complex numbers, nor for types that do not reach -1e4: their lowest value is saturated."""
    if not target.kind == golden.kind == "f" or min(target.largest, golden.largest) < VALUES[0]:
        return Masks()
    coarse = narrower(target, golden)
    values, bound = _rounded(VALUES, coarse), -coarse.largest / 2
    own = ((), ()) if target == golden else [_rounded((d.largest, d.largest / 2, *OWN), d) for d in (target, golden)]
    return Masks(max(bound, *values, *own[0], *own[1]), bound, values, *own)


def _rounded(sizes: tuple[float, ...], dtype: Dtype) -> tuple[float, ...]:
    """The negative of each that a type can hold, as it holds it."""
    held = [size for size in sizes if size <= dtype.largest]
    wide = np.array(held, np.float32 if dtype.itemsize < 4 else np.float64)
    return tuple((-wide.astype(numpy_dtype(dtype.name)).astype(np.float64)).tolist())
