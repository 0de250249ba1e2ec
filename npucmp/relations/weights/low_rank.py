"""Updates of low rank (LoRA): the product of two matrices times a scale, added to a weight.

The scale is declared by the user, else stated by a configuration, else estimated by least squares on some rows of each
merged weight and taken by the majority (free_numbers.py).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import total
from npucmp.dump.readers.weight_payloads import product
from npucmp.errors import if_unreadable
from npucmp.model import Payload
from npucmp.model.dtypes import lookup
from npucmp.relations.weights.free_numbers import FreeNumber, decided
from npucmp.relations.weights.limits import WeightLimit, limit_of
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.sample import PART, Array, row_numbers, rows_of, share_agreeing, whole_values

NEAR = 0.05  # of a scale of LoRA: chosen: estimates of one number differ less in bfloat16
RANKS = 1, 2, 4, 8, 16, 32, 64  # ranks of LoRA: chosen: powers of two are the usual ones
_DIGITS = 4  # significant digits of a scale of LoRA: chosen: alpha and rank are whole numbers


class LowRankSample(NamedTuple):
    """Rows of a merged weight, of the weight without the update, and of the update times 1, in float64; their limit,
    and the rounding of the update."""

    merged: Array
    base: Array
    update: Array
    limit: WeightLimit
    rounding: float

    def share(self, scale: float) -> float:
        """Return the share of elements that agree if the update is merged with a scale."""
        slack = self.limit.atol + abs(scale) * self.rounding
        return share_agreeing(self.merged, self.base + scale * self.update, WeightLimit(self.limit.rtol, slack))


@if_unreadable(None)
def sample_of(base: Part, merged: Part, update: Part, context: ReadContext) -> Optional[LowRankSample]:
    """Return some rows of a weight, of the merged weight and of the update; None if they cannot be read."""
    assert base.payload is not None and update.payload is not None
    if merged.payload is None or merged.shape != base.shape:
        return None
    numbers = row_numbers(base.shape[0])
    x, y = (rows_of(one, numbers, context) for one in (merged.payload, base.payload))
    left, right = (whole_values(one, context) for one in update.payload.parts)
    rounding = _rounding(merged.dtype, left, right)
    return LowRankSample(x, y, left[numbers] @ right, limit_of(merged, base), rounding)


def lora_scale(samples: Sequence[Optional[LowRankSample]]) -> FreeNumber:
    """Return the factor of the update of low rank under which most merged weights are those of the other side. A sample
    is None if its weights cannot be read.

    The estimates of a factor differ by rounding: the simplest number that fits best is taken.
    """
    known = [one for one in samples if one is not None]
    estimates = sorted(one for one in map(_scale_of, known) if one is not None)
    votes: Counter[float] = Counter()
    while estimates:
        near = [one for one in estimates if abs(one - estimates[0]) <= NEAR * abs(estimates[0])]
        estimates = [one for one in estimates if one not in near]
        middle = near[len(near) // 2]
        shares = {one: [sample.share(one) for sample in known] for one in simple_numbers(middle)}
        best = max(shares, key=lambda one: round(sum(shares[one]), _DIGITS))
        votes[best] = sum(share >= PART for share in shares[best])
    return decided(votes, len(samples))


def simple_numbers(value: float) -> list[float]:
    """Return numbers near a value, the simplest first: few digits, and the quotients of a rank of LoRA."""
    rounded = [float(f"{value:.{digits}g}") for digits in range(1, _DIGITS + 1)]
    quotients = [round(value * rank) / rank for rank in RANKS]
    found = [one for one in (*quotients[:1], *rounded, *quotients) if abs(one - value) <= NEAR * abs(value)]
    return list(dict.fromkeys([*found, value]))


def _scale_of(sample: LowRankSample) -> Optional[float]:
    """Return the scale by least squares on some rows; None if the update is zero there."""
    x, y, z = sample[:3]
    with np.errstate(all="ignore"):
        squares = float((z * z).sum())
        value = float(((x - y) * z).sum()) / squares if squares else float("nan")
    return value if np.isfinite(value) and value else None


def product_of(left: Part, right: Part) -> Optional[Part]:
    """Return the product of two matrices, and of their copies; None if a shape or a payload does not allow it."""
    whole = _side_by_side(left, right)
    shapes = [(*x.shape, *y.shape) for x, y in whole]
    if len({*shapes}) != 1 or len(left.shape) != 2 or len(right.shape) != 2 or left.shape[1] != right.shape[0]:
        return None
    first, *copies = (product(x, y, 1.0) for x, y in whole)
    return left._replace(payload=first, copies=tuple(copies))


def merged(base: Part, update: Part, scale: float) -> Part:
    """Return a weight plus its update. A copy of another shape gets no update, and differs."""
    first, *copies = (
        total([x, y._replace(factor=scale)]) if x.shape == y.shape else x for x, y in _side_by_side(base, update)
    )
    return base._replace(payload=first, words=f"LoRA({scale:g})", shards=(), copies=tuple(copies))


def _side_by_side(one: Part, other: Part) -> list[tuple[Payload, Payload]]:
    """Return the payloads of two parts, then their copies; the part itself replaces copies that it does not have."""
    if one.payload is None or other.payload is None:
        return []
    rows = (one.payload, *one.copies), (other.payload, *other.copies)
    x, y = ([row[at] if at < len(row) else row[0] for at in range(max(map(len, rows)))] for row in rows)
    return [*zip(x, y)]


@if_unreadable(0.0)
def update_rounding(other: Part, update: Payload, context: ReadContext) -> float:
    """Return the rounding of an update of low rank; 0 if it cannot be read."""
    left, right = (whole_values(one, context) for one in update.parts)
    return abs(update.factor) * _rounding(other.dtype, left, right)


def _rounding(dtype: str, left: Array, right: Array) -> float:
    """Return the rounding of a product whose terms are in a type, by the largest norms of rows and columns of its
    matrices."""
    row = lookup(dtype)
    bound = math.sqrt(float((left**2).sum(1).max(initial=0.0)) * float((right**2).sum(0).max(initial=0.0)))
    return bound * (row.round_off if row is not None else 0.0) * max(2.0, math.sqrt(left.shape[1]))
