"""How the Moments of two neighbouring blocks become one: associative, and exact in every count and index.

Sums are added in the order of the blocks, so a result does not depend on who measured which block.
"""

from __future__ import annotations

from typing import Callable, Optional

from npucmp.model import Moments, Side


def merge(a: Moments, b: Moments) -> Moments:
    """Moments of block a followed by block b. Of equal maxima the earlier index is kept."""
    worse_abs = b if b.max_abs > a.max_abs else a
    worse_rel = b if b.max_rel > a.max_rel else a
    return Moments(
        elements=a.elements + b.elements,
        target=merge_sides(a.target, b.target),
        golden=merge_sides(a.golden, b.golden),
        compared=a.compared + b.compared,
        masked=a.masked + b.masked,
        mismatched=a.mismatched + b.mismatched,
        equal=a.equal + b.equal,
        xx=a.xx + b.xx,
        yy=a.yy + b.yy,
        xy=a.xy + b.xy,
        sum_d=a.sum_d + b.sum_d,
        sum_abs=a.sum_abs + b.sum_abs,
        sum_dd=a.sum_dd + b.sum_dd,
        max_abs=worse_abs.max_abs,
        max_abs_index=worse_abs.max_abs_index,
        max_abs_exact=_larger(a.max_abs_exact, b.max_abs_exact),
        max_rel=worse_rel.max_rel,
        max_rel_index=worse_rel.max_rel_index,
        sum_rel=a.sum_rel + b.sum_rel,
        below_1e3=a.below_1e3 + b.below_1e3,
        below_5e3=a.below_5e3 + b.below_5e3,
        outside=a.outside + b.outside,
        max_ulp=_larger(a.max_ulp, b.max_ulp),
        histogram=tuple(left + right for left, right in zip(a.histogram, b.histogram)),
    )


def merge_sides(a: Side, b: Side) -> Side:
    """One side's half of merge; NaN as minimum or maximum means that a block held nothing finite."""
    return Side(
        nan=a.nan + b.nan,
        posinf=a.posinf + b.posinf,
        neginf=a.neginf + b.neginf,
        minimum=_pick(min, a.minimum, b.minimum),
        maximum=_pick(max, a.maximum, b.maximum),
        total=a.total + b.total,
        squares=a.squares + b.squares,
    )


def _pick(best: "Callable[[float, float], float]", a: float, b: float) -> float:
    if a != a:
        return b
    if b != b:
        return a
    return best(a, b)


def _larger(a: Optional[int], b: Optional[int]) -> Optional[int]:
    if a is None or b is None:
        return b if a is None else a
    return max(a, b)
