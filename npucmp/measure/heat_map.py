"""Counts of elements by place in a tensor: a small grid with the last axis across and all other axes down."""

from __future__ import annotations

import math
from typing import Sequence

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]

DOWN, ACROSS = 24, 64  # most cells


class Grid:
    """Counts of elements in a grid of at most DOWN × ACROSS cells."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.columns = next((length for length in reversed(shape) if length > 1), 1)
        self.rows = max(1, math.prod(shape) // self.columns)
        self.down, self.across = min(DOWN, self.rows), min(ACROSS, self.columns)
        self.counts = np.zeros(self.down * self.across, np.int64)

    def add(self, places: Places) -> None:
        """Add elements by their indices in C order."""

        row = places // self.columns  # several times as fast as divmod
        column = places - row * self.columns
        cells = row * self.down // self.rows * self.across + column * self.across // self.columns
        self.counts += np.bincount(cells, minlength=len(self.counts))
