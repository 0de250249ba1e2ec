"""The contents of all tensors of a table (contents.py), as numbers of 64 bits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.flow.contents import _MASK, MIN_ELEMENTS
from npucmp.model import Statistics, TensorRef
from npucmp.model.moments import FEW_BITS
from npucmp.model.table import (
    Columns,
    Flags,
    has_own_figures,
    has_record,
    network_fact,
    recorded_figures,
    with_field,
)

_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that the product of 64 bits keeps all of them
_HALF = np.uint64(32)  # bits: definition: half of a number


class _Counts(NamedTuple):
    """The number of elements of each tensor as 64 bits, whether it has elements, and whether they are few, of both
    sides."""

    counts: npt.NDArray[np.uint64]
    exist: Flags
    few: Flags

    @classmethod
    def of(cls, columns: Columns) -> _Counts:
        counts = [[0 if tensor is None else math.prod(tensor.shape) for tensor in tensors]
                  for tensors in (columns.targets, columns.goldens)]  # fmt: skip
        bits = [[count & 0xFFFF_FFFF_FFFF_FFFF for count in of_side] for of_side in counts]
        few = [[count < MIN_ELEMENTS for count in of_side] for of_side in counts]
        return cls(
            np.array(bits, np.uint64), np.array([[*map(bool, one)] for one in counts], bool), np.array(few, bool)
        )


def contents_of(columns: Columns, side: int) -> list[int]:
    """The content of the target tensor (side 0) or of the golden tensor of each row; 0 if it is unknown or does not
    identify the tensor."""
    counts, exist, few = (fact[side] for fact in network_fact(columns, _Counts.of))
    has_record, known, figures = _recorded(columns, side)
    is_equal = np.where(known[:, 0] & known[:, 1], figures[:, 0] == figures[:, 1], known[:, 0] == known[:, 1])
    is_simple = ~(known & _are_computed(figures)).any(1)
    may_identify = exist & ~np.where(few, is_simple, has_record & is_equal)
    found = _numbers(may_identify & known.all(1) & ~np.isnan(figures).any(1), counts, *figures.T)
    whole = with_field(columns, "checksum")
    without = columns.rank is not None and whole is columns  # the tensors that ranks share have no checksum
    for row, tensor in () if without else enumerate(_tensors(whole, side)):
        if tensor is not None and tensor.checksum:
            identity = int.from_bytes(str(tensor.identity).encode("utf-8", "backslashreplace"), "big")
            found[row] = may_identify[row] and identity and (hash((int(counts[row]), identity)) & _MASK or 1)
    measured = columns.rows["moments"] >= 0
    moments = columns.moments[columns.rows["moments"][measured]]
    found[measured] = _of_moments(moments, ("target", "golden")[side], few[measured]) * exist[measured]
    contents: list[int] = found.tolist()
    return contents


def _tensors(columns: Columns, side: int) -> Sequence[Optional[TensorRef]]:
    return columns.goldens if side else columns.targets


def _recorded(columns: Columns, side: int) -> tuple[Flags, Flags, npt.NDArray[np.float64]]:
    """Whether the tensor of each row has recorded statistics, and its figures as of recorded_figures. Where the row
    does not have them, its tensor has."""
    found, (known, figures) = has_record(columns, side), recorded_figures(columns, side)
    others = np.flatnonzero(~has_own_figures(columns.rows)).tolist()
    if others:
        figures, tensors = figures.copy(), _tensors(columns.complete(), side)
        for row in others:
            tensor = tensors[row]
            recorded = tensor.statistics if tensor is not None else None
            found[row] = recorded is not None
            known[row] = [figure is not None for figure in recorded or Statistics()]
            figures[row] = [math.nan if figure is None else figure for figure in recorded or Statistics()]
    return found, known, figures


def _of_moments(moments: npt.NDArray[Any], side: str, few: Flags) -> npt.NDArray[np.uint64]:
    """The contents of tensors whose values were measured."""
    half, elements, error = moments[side], moments["elements"], moments["max_abs"]
    numbers = np.stack([half["minimum"], half["maximum"], half["total"]], axis=1)
    is_constant = ~few & (half["minimum"] == half["maximum"])  # only its error identifies a constant
    by_hash = np.where(few, _are_computed(numbers).any(1), ~is_constant) & ~np.isnan(half["minimum"])
    is_known = is_constant & (error != 0) & ~np.isnan(moments["sum_dd"]) & ~np.isnan(error)
    of_constants = _numbers(is_known, elements, half["minimum"], moments["sum_dd"], error)
    return _numbers(by_hash, elements, half["hash"]) | of_constants


def _numbers(chosen: Flags, *parts: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """A number of 64 bits, not 0, for the parts of each chosen row; 0 elsewhere. -0 counts as 0."""
    found = np.full(len(chosen), len(parts), np.uint64)
    for part in parts:
        found ^= (part + 0.0).view(np.uint64) if part.dtype == np.float64 else part.astype(np.uint64)
        found *= _MIX
        found ^= found >> _HALF
        found *= _MIX
        found ^= found >> _HALF
    found[~chosen] = 0
    found[chosen & (found == 0)] = 1
    return found


def _are_computed(values: npt.NDArray[np.float64]) -> Flags:
    """Whether each number is finite and has more than 4 significant bits, as contents.is_computed."""
    finite = np.isfinite(values)
    fractions = np.abs(np.frexp(np.where(finite, values, 0.0))[0] * 2.0**FEW_BITS) % 1.0
    found: Flags = finite & (fractions != 0.0)
    return found
