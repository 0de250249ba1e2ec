"""The part of a tensor in which elements differ: a product of one range or short list of indices per axis."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LISTED = 4  # indices of an axis that no range describes: chosen: more are no clear region, not measured
# share of the elements of a region: chosen: wrong elements agree by chance in places, not measured
DENSE = 0.5


class Region(NamedTuple):
    """Indices along each axis, sorted, and the shape of the tensor."""

    axes: tuple[Array, ...]
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        size = 1
        for indices in self.axes:
            size *= len(indices)
        return size

    def of(self, array: Array) -> Array:
        """Return the elements of an array of this shape."""

        return array[np.ix_(*self.axes)]

    def __str__(self) -> str:
        return f"[{', '.join(_words(indices, length) for indices, length in zip(self.axes, self.shape))}]"

    def share(self) -> str:
        """Return the share along the one axis that the region does not cover, or the number of elements."""
        cut = [axis for axis, indices in enumerate(self.axes) if len(indices) < self.shape[axis]]
        if len(cut) == 1 and len(self.shape) > 1:
            return f"{len(self.axes[cut[0]]):,} of {self.shape[cut[0]]:,} along axis {cut[0]}"
        total = 1
        for length in self.shape:
            total *= length
        return f"{self.elements:,} of {total:,} elements"


def region_of(wrong: Array) -> Optional[Region]:
    """Return the smallest region that contains all wrong elements; None if it is the whole tensor, if fewer than
    `DENSE` of its elements are wrong, or if the indices of an axis are neither a range nor at most `LISTED`."""

    if not wrong.ndim or not wrong.any():
        return None
    every = range(wrong.ndim)
    axes = tuple(np.flatnonzero(wrong.any(axis=tuple(other for other in every if other != axis))) for axis in every)
    region = Region(axes, wrong.shape)
    if region.elements == wrong.size or int(wrong.sum()) < DENSE * region.elements:
        return None
    if any(len(indices) > LISTED and not _step(indices) for indices in axes):
        return None
    return region


def _step(indices: Array) -> int:
    """Return the distance of indices that lie evenly apart; 0 for others."""

    steps = np.diff(indices)
    return int(steps[0]) if len(steps) and (steps == steps[0]).all() else int(not len(steps))


def _words(indices: Array, length: int) -> str:
    first, last, step = int(indices[0]), int(indices[-1]), _step(indices)
    if len(indices) == length:
        return ":"
    if len(indices) == 1:
        return str(first)
    if step == 1:
        return f"{first}:{last + 1}"
    if step and len(indices) > 2:
        return f"{first}:{last + 1}:{step}"
    return f"({', '.join(map(str, indices.tolist()))})"
