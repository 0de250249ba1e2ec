"""Rows of a comparison from the golden's side, and conclusions from the figures of one tensor."""

from __future__ import annotations

import math
from typing import Hashable, NamedTuple, Optional

from npucmp.model import Finding, Operator, Side
from npucmp.model.dtypes import SUM_ROUNDING, lookup
from npucmp.model.moments import repeated_hash

# value: chosen: the largest number that replaces minus infinity in masks (OWN of measure/kernel/mask_values.py), not
# measured
MASKS = -1e4


class GoldenRow(NamedTuple):
    """A finding, and the number of elements of its tensor; None if no header records it."""

    finding: Finding
    elements: int | None

    @classmethod
    def of(cls, finding: Finding) -> GoldenRow:
        tensor = finding.pair.golden or finding.pair.target
        known = tensor is not None and (tensor.slot or tensor.shape)
        return cls(finding, math.prod(tensor.shape) if known and tensor is not None else None)

    @property
    def operator(self) -> Operator:
        """The operator of the golden, or of the target if the golden has none."""
        found = self.finding.pair.golden_op or self.finding.pair.target_op
        assert found is not None
        return found

    @property
    def is_alone(self) -> bool:
        """Whether the target has no such operator."""
        return self.finding.pair.target_op is None


class SharedRecords:
    """The golden records that hold one and the same tensor.

    writers, readers  rows of the operators that wrote it, and that read it
    """

    __slots__ = ("readers", "writers")

    def __init__(self) -> None:
        self.writers: list[GoldenRow] = []
        self.readers: list[GoldenRow] = []

    @property
    def rows(self) -> list[GoldenRow]:
        return [*self.writers, *self.readers]


def side_of(row: GoldenRow) -> Optional[Side]:
    """The golden's moments of a row; None if its values are unknown."""
    moments = row.finding.measurement.moments
    return None if moments is None else moments.golden


def round_off_of_row(row: GoldenRow) -> float:
    """The unit round-off of a row's golden type; 0 if it is not a float type."""
    tensor = row.finding.pair.golden
    dtype = lookup(tensor.dtype) if tensor is not None else None
    return dtype.round_off if dtype is not None else 0.0


def constant_of(row: GoldenRow) -> Optional[Hashable]:
    """A key that identifies a tensor of equal elements; None for any other tensor."""
    side, tensor = side_of(row), row.finding.pair.golden
    if side is None or tensor is None or side.minimum != side.maximum:
        return None
    return tensor.shape, tensor.dtype, side.minimum, side.nan, side.posinf, side.neginf


def is_mask(row: GoldenRow) -> bool:
    """Whether a tensor is a mask: true and false, or 0 and one value so low that its exponential is 0."""
    side, tensor = side_of(row), row.finding.pair.golden
    if tensor is not None and tensor.dtype == "bool":
        return True
    if side is None or side.maximum != 0.0 or side.nan or side.posinf:
        return False
    if side.neginf:
        return side.minimum == 0.0
    return side.minimum <= MASKS and math.isclose(side.squares, side.minimum * side.total, rel_tol=SUM_ROUNDING)


def is_expansion(written: GoldenRow, read: GoldenRow) -> bool:
    """Whether a tensor holds each element of another several times, in any order: heads of keys that queries share, a
    mask along the batch. The hashes prove it."""
    one, more, few, many = side_of(written), side_of(read), written.elements, read.elements
    if one is None or more is None or not few or not many or many % few or many == few:
        return False
    return one.minimum < one.maximum and repeated_hash(one.hash, many // few) == more.hash


def rounds_to(wide: Side, narrow: Side, unit: float) -> bool:
    """Whether the statistics of one tensor are those of another, rounded element by element with this round-off."""
    if (wide.nan, wide.posinf, wide.neginf) != (narrow.nan, narrow.posinf, narrow.neginf):
        return False
    unit = unit + SUM_ROUNDING
    extremes = ((wide.minimum, narrow.minimum), (wide.maximum, narrow.maximum))
    near = all(abs(a - b) <= unit * max(abs(a), abs(b)) for a, b in extremes)
    return near and abs(wide.squares - narrow.squares) <= 2 * unit * wide.squares
