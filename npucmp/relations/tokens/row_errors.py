"""Errors of the rows of a pair: of each token, and of each column of the tokens that differ."""

from __future__ import annotations

import math
from typing import Any, Iterator, NamedTuple, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.model import Pair
from npucmp.relations.tokens.token_rows import row_blocks


class RowErrors(NamedTuple):
    """For each row the norm of the difference, and that of the golden row; `equal`: whether its bits are equal."""

    error: Any
    norm: Any
    equal: Any

    @property
    def relative(self) -> Any:
        """The error of each row relative to its norm; inf for a row of zeros that differs, and for NaN or Inf on one
        side."""

        with np.errstate(all="ignore"):
            found = np.where(self.error == 0.0, 0.0, self.error / self.norm)
        return np.where(np.isnan(found), np.inf, found)

    @property
    def whole(self) -> float:
        """The error of all rows relative to their norm; inf or NaN as of a row."""
        with np.errstate(all="ignore"):
            return float(np.sqrt((self.error**2).sum() / (self.norm**2).sum()))


def row_errors(pair: Pair, context: ReadContext) -> Optional[RowErrors]:
    """The errors of all rows of a pair; None without values of one shape on both sides. Raises NpucmpError if a side
    cannot be read."""

    found = []
    try:
        for a, b in _blocks(pair, context):
            difference, size = _differences(a, b)
            with np.errstate(all="ignore"):
                norm = np.sqrt((np.where(np.isfinite(size), size, 0.0) ** 2).sum(1))
                found.append((np.sqrt((difference**2).sum(1)), norm, _have_equal_bits(a, b)))
    except _NoValues:
        return None
    return RowErrors(*map(np.concatenate, zip(*found))) if found else None


def column_errors(pair: Pair, rows: Any, context: ReadContext) -> Optional[Any]:
    """The error of each column over the rows that are marked, relative to the golden's root mean square there: inf for
    NaN and Inf on one side. None, also for rows of zeros, and NpucmpError as in row_errors."""

    total: Any = 0.0
    size, at = 0.0, 0
    try:
        for a, b in _blocks(pair, context):
            own = rows[at : at + len(a)]
            at += len(a)
            difference, y = _differences(a[own], b[own])
            with np.errstate(all="ignore"):
                total = total + np.nan_to_num(difference**2, nan=np.inf).sum(0)
                size += float((np.where(np.isfinite(y), y, 0.0) ** 2).sum()) / max(1, y.shape[1])
    except _NoValues:
        return None
    with np.errstate(all="ignore"):
        return np.sqrt(total / size) if size else None


def _differences(a: Any, b: Any) -> tuple[Any, Any]:
    """The sizes of a - b and of b in float64: 0 for equal numbers and for NaN on both sides, at least 1 for integers
    that differ."""

    wide = np.complex128 if "c" in a.dtype.kind + b.dtype.kind else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        found = np.abs(x - y)
        if a.dtype.kind in "iu" and b.dtype.kind in "iu":
            found = np.maximum(found, 1.0)
        return np.where((a == b) | (np.isnan(x) & np.isnan(y)), 0.0, found), np.abs(y)


def _have_equal_bits(a: Any, b: Any) -> Any:
    """Whether the bits of each row are equal; values of two types have equal bits if the numbers are equal."""

    if a.dtype == b.dtype:
        a, b = (np.ascontiguousarray(one).view(np.uint8) for one in (a, b))
    return (a == b).all(1)


class _NoValues(Exception):
    """A side has no values, or another shape."""


def _blocks(pair: Pair, context: ReadContext) -> Iterator[tuple[Any, Any]]:
    """Yield the rows of both sides."""
    target, golden = (one.payload if one is not None else None for one in (pair.target, pair.golden))
    if target is None or golden is None or math.prod(target.shape) != math.prod(golden.shape) or not target.shape:
        raise _NoValues
    if target.shape[0] != golden.shape[0] or 0 in target.shape:
        raise _NoValues
    yield from zip(row_blocks(target, context), row_blocks(golden, context))
