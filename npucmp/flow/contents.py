"""The content of a tensor as one number, which identifies the tensor within its run.

Two tensors of one run with equal content are the same tensor: an output and the inputs that read it, a view, a reshape,
a transpose, a lossless cast. If values were measured, their number and their hash are the content
(measure/kernel/numpy_kernel.py). Numbers that are equal by chance do not link tensors: constants and zeros, and simple
numbers: 0, 1, a half. Without values, the recorded statistics or the checksum are the content.

The hash does not depend on the order of the elements; -0 counts as 0, and elements are widened to float32 if that is
lossless. Tensors of fewer than 4 elements link only if they hold a number of more than 4 significant bits.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Hashable, Optional, Sequence, TypeVar

import numpy as np
import numpy.typing as npt

from npucmp.flow.operators import of_row
from npucmp.model import Finding, Measurement, Pair
from npucmp.model.dtypes import MOST
from npucmp.model.moments import FEW_BITS
from npucmp.model.network import SearchRows, by_network
from npucmp.model.table import ChangedRows, has_figures, made_once

MIN_ELEMENTS = 4  # elements: chosen: fewer agree by chance, not measured
_MASK = (1 << 64) - 1  # bits: definition: a content is a number of 64 bits
_ODD = 0x9E3779B97F4A7C15  # factor: definition: the golden ratio as 64 bits spreads them
_HALF = 32  # bits: definition: of such a number
KEPT = 32  # results: work: ranks of a network have a few sets of equal rows
Contents = npt.NDArray[np.uint64]
Made = TypeVar("Made")


@of_row
def content_of(finding: Finding) -> int:
    """The content of the golden tensor of a row; 0 if it is unknown or does not identify the tensor."""
    return content_in(finding.measurement)


@of_row
def target_content_of(finding: Finding) -> int:
    """The content of the target tensor of a row; 0 if it is unknown or does not identify the tensor."""
    return content_in(finding.measurement, 0)


def contents_of(findings: Sequence[Finding], side: int = 1) -> list[int]:
    """The contents of the target's tensors (side 0) or of the golden's (1) by row, from columns where statistics alone
    are known."""
    rows = rows_in_columns(findings)
    if rows is None:
        return [*map(content_of if side else target_content_of, findings)]
    contents: list[int] = _contents(rows, side).tolist()
    return contents


def contents_at(findings: Sequence[Finding], at: Sequence[int], side: int = 1) -> list[int]:
    """The same for some rows."""
    rows = rows_in_columns(findings)
    if rows is None or len(rows.columns.moments):
        return [*map(content_of if side else target_content_of, map(findings.__getitem__, at))]
    contents: list[int] = _contents(rows, side)[at].tolist()
    return contents


def by_equal_rows(findings: Sequence[Finding], key: Hashable, make: Callable[[], Made]) -> Made:
    """The result of a function, named by a key, that depends on the pairs of a network and on the rows whose contents
    are equal on each side. Ranks have these in common, so the latest results are kept."""
    rows = rows_in_columns(findings)
    if rows is None:
        return make()
    known: dict[Hashable, Any] = rows.network.columns.setdefault(by_equal_rows, {})
    made = {} if rows.columns.rank is None else rows.columns.rank.contents
    key = key, *(made_once(made, (_equal_rows, side), rows, side) for side in range(2))
    if key not in known:
        if len(known) >= KEPT:
            known.clear()
        known[key] = make()
    found: Made = known[key]
    return found


def rows_in_columns(findings: Sequence[Finding]) -> Optional[SearchRows]:
    """The rows whose contents columns have; None for values and checksums."""
    rows = findings.rows if isinstance(findings, ChangedRows) else findings  # of equal measurements
    return rows if isinstance(rows, SearchRows) and not rows.has_checksums else None


def _contents(rows: SearchRows, side: int) -> Contents:
    rank = rows.columns.rank
    found: Contents = made_once({} if rank is None else rank.contents, (_contents_of_columns, side), rows, side)
    return found


def _equal_rows(rows: SearchRows, side: int) -> bytes:
    """The first row of equal content by row, -1 for an unknown content."""
    contents = _contents(rows, side)
    different, first, places = np.unique(contents, return_index=True, return_inverse=True)
    return np.where(different > 0, first, -1)[places].astype(np.int32).tobytes()


def _contents_of_columns(findings: SearchRows, side: int) -> Contents:
    of_row = content_of if side else target_content_of
    rows, count = findings.columns.rows, _elements(findings)[side]
    figures = rows["figures"][:, side]
    with np.errstate(invalid="ignore"):
        few = np.abs(np.frexp(figures)[0] * 2.0**FEW_BITS) % 1.0 != 0.0
    is_told = np.where(count < MIN_ELEMENTS, (few & np.isfinite(figures)).any(axis=1), figures[:, 0] != figures[:, 1])
    is_told &= (count > 0) & ~np.isnan(figures).any(axis=1)
    found = np.where(is_told, _of_figures(count, figures), 0)
    for at in np.flatnonzero((count > 0) & ~has_figures(rows, side)).tolist():
        found[at] = of_row(findings[at])
    return found


def _of_figures(count: npt.NDArray[np.int64], figures: npt.NDArray[np.float64]) -> Contents:
    """The contents of tensors of which four figures were recorded."""
    found = count.astype(np.uint64)
    for bits in (figures + 0.0).view(np.uint64).T:  # -0 equals 0
        found = (found ^ bits) * np.uint64(_ODD)
        found ^= found >> np.uint64(_HALF)
    return np.maximum(found, 1)


@by_network
def _elements(pairs: Sequence[Pair]) -> npt.NDArray[np.int64]:
    """The number of elements of the tensors of target and golden (2, rows), at most 2^62; 0 without a tensor."""
    sides = [[one.target for one in pairs], [one.golden for one in pairs]]
    return np.array([[0 if one is None else min(math.prod(one.shape), MOST) for one in side] for side in sides])


def content_in(measurement: Measurement, side: int = 1) -> int:
    """The content of the target (0) or the golden tensor (1) of a pair; 0 if it is unknown or does not identify it."""
    tensor, moments = (measurement.pair.target, measurement.pair.golden)[side], measurement.moments
    count = 0 if tensor is None else math.prod(tensor.shape)
    if tensor is None or not count:
        return 0
    if moments is not None:
        own = (moments.target, moments.golden)[side]
        if own.minimum == own.maximum and count >= MIN_ELEMENTS:  # only its error identifies a constant
            return _number(moments.elements, own.minimum, moments.sum_dd, moments.max_abs) if moments.max_abs else 0
        is_told = count >= MIN_ELEMENTS or any(map(is_computed, (own.minimum, own.maximum, own.total)))
        return _number(moments.elements, own.hash) if is_told and own.minimum == own.minimum else 0
    recorded = measurement.recorded(side)
    is_told = recorded is not None and any(map(is_computed, recorded))
    if not is_told if count < MIN_ELEMENTS else recorded is not None and recorded.max == recorded.min:
        return 0
    if tensor.checksum:
        return _number(count, int.from_bytes(str(tensor.identity).encode(), "big")) if tensor.identity else 0
    if recorded is not None and None not in recorded and not any(one != one for one in recorded):
        return int(_of_figures(np.array([min(count, MOST)]), np.array([recorded], np.float64))[0])
    return 0


def _number(*parts: object) -> int:
    """One 64-bit number, the same in all processes for numbers."""
    for one in parts:
        if one != one:  # NaN equals nothing
            return 0
    return hash(parts) & _MASK or 1


def is_computed(value: Optional[float]) -> bool:
    """Return whether a number is not a simple one, which people write or count: it has more than 4 significant bits."""
    return value is not None and math.isfinite(value) and abs(math.frexp(value)[0] * 2.0**FEW_BITS) % 1.0 != 0.0


def is_few(finding: Finding) -> bool:
    """Return whether a tensor has fewer than TINY elements."""
    return finding.pair.golden is not None and math.prod(finding.pair.golden.shape) < MIN_ELEMENTS


def is_vector(finding: Finding) -> bool:
    """Return whether a tensor has at most one axis, as sums over all other axes have."""
    return finding.pair.golden is not None and len(finding.pair.golden.shape) <= 1
