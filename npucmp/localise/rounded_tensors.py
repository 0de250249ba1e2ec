"""Tensors of root causes that are the other run's tensor rounded once to a coarser type, proven element by element.

Positions, tables of sines, masks and buffers are often cast on one side. Rounding the other side to the type must give
the same elements, all of them: a tensor that is near, shifted or cut off is not called rounded. If both sides have one
type and hold a few simple numbers, rounding changes nothing, and the tensors do not differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from npucmp.localise.evidence import reason
from npucmp.model import Evidence, Finding, Root
from npucmp.model.dtypes import numpy_dtype

Array = npt.NDArray[np.generic]

TYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")  # finest first


def with_rounding(root: Root, finding: Finding, x: Array, y: Array) -> Root:
    """Return a root with the evidence that one side of its tensor, whose values are x and y, was rounded."""
    found = rounding_of(finding, x, y)
    if found is None:
        return root
    at = next((at for at, one in enumerate(root.evidence) if one.kind in ("gap", "fed", "tensor")), 0)
    return replace(root, evidence=(*root.evidence[: at + 1], found, *root.evidence[at + 1 :]))


def rounding_of(finding: Finding, x: Array, y: Array) -> Optional[Evidence]:
    """The evidence that one side of a tensor is the other side rounded to a coarser type; None if no rounding makes
    them equal, or if they hold no numbers."""
    target, golden, moments = finding.pair.target, finding.pair.golden, finding.measurement.moments
    if target is None or golden is None or moments is None or not moments.differing:
        return None
    if x.dtype.kind not in "fi" or y.dtype.kind not in "fi":
        return None
    own = {target.dtype, golden.dtype}
    for name in TYPES:
        words = (
            (
                x,
                y,
                "{slot} is the golden's rounded to {dtype}: after this rounding all {count:,} elements are equal, "
                "before it {changed:,} differ",
            ),
            (
                y,
                x,
                "the golden's {slot} is the target's rounded to {dtype}: after this rounding all {count:,} elements "
                "are equal, before it {changed:,} differ",
            ),
        )
        for coarse, fine, sentence in words:
            if is_rounded(coarse, fine, name) and (name in own or shows_type(coarse, fine)):
                facts = {"count": moments.elements, "changed": moments.differing}
                return reason("rounded", sentence, slot=finding.pair.slot, dtype=name, **facts)
    return None


def shows_type(coarse: Array, fine: Array) -> bool:
    """Whether an element that rounding changed is a finite number other than 0. Zeros and infinities are no numbers of
    one type: every type whose range ends before makes them."""

    values = coarse.astype(np.float64)
    return bool(((values != fine.astype(np.float64)) & np.isfinite(values) & (values != 0.0)).any())


def is_rounded(coarse: Array, fine: Array, name: str) -> bool:
    """Whether each element of `coarse` is that of `fine` rounded to the nearest number of a type; NaN equals NaN."""

    with np.errstate(all="ignore"):
        rounded: Any = fine.astype(np.float32).astype(numpy_dtype(name))
        return bool(np.array_equal(rounded.astype(np.float64), coarse.astype(np.float64), equal_nan=True))
