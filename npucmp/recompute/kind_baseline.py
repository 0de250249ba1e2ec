"""Errors that all operators of a kind share: a setting of the device, not a fault of one operator.

If (nearly) every output of a kind exceeds its budget by a similar factor, the device computes the kind more coarsely
than its type (products in HF32, an exp in float16): the kind gets one line, and no operator is guilty. This applies up
to the error that the setting causes. An operator with a larger error than its peers stays guilty.

Coarser arithmetic rounds to nearest, which has no direction. If the errors of all operators of a kind lie on one side
of the values, the cause is another formula: a factor, a missing term, an approximation. The same applies to an error
larger than half precision leaves. This is one finding: the operators are guilty, and one line reports the kind.
Evidence: the mean error toward zero is 0.05 of the relative error at most in GELUs with half precision inside, 1.0 of
a factor, 1.3 to 4 of the approximation by tanh, 3.3 of a missing term.
"""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from typing import Iterator, Mapping, NamedTuple, Sequence

from npucmp.model import Operator, ReplayedOutput, ReplayVerdict, RoundingCounts
from npucmp.model.optypes import op_type

FEWEST = 3  # operators that make a kind
KIND_SHARE = 0.9  # of them exceed their budget: the others may hold values that need no rounding
OUTLIER = 4.0  # times the median: not similar
COARSE = 2.0**-10  # relative error that half precision inside a float32 operator leaves
IN_16_BITS = 4.0  # units of a 16-bit type
DIRECTED = 0.5  # of the relative error is the mean error toward or from zero: roundings to nearest average out


class KindExplanation(NamedTuple):
    """A sentence about a kind, the places of rows that it excuses, and of rows that another formula, or one direction
    of rounding, makes guilty. `is_setting`: a setting of the device explains the rows that it excuses."""

    words: str
    rows: frozenset[int]
    alike: frozenset[int] = frozenset()
    direction: str = ""
    is_setting: bool = False


def explain_kinds(rows: Sequence[ReplayedOutput], operators: Mapping[int, Operator]) -> list[KindExplanation]:
    """Return kinds of operators that exceed their budgets by similar factors."""
    found = [*_rounded_to_one_side(rows, operators)]
    sided = {place for kind in found for place in kind.alike}
    for name, places, alone in _kinds(rows, operators):
        if sided.intersection(places):
            continue
        beyond = [place for place in places if rows[place].verdict in (ReplayVerdict.GUILTY, ReplayVerdict.AMPLIFIER)]
        if len({rows[place].order for place in beyond}) < FEWEST or len(beyond) < KIND_SHARE * len(places):
            continue
        from statistics import median

        ratio, error = (
            median(getattr(rows[place], name) or 0.0 for place in beyond) for name in ("rms_ratio", "rel_l2")
        )
        alike = [place for place in beyond if _is_alike(rows[place], ratio, error)]
        coarse = [place for place in alike if _is_coarse(rows[place])]
        number = f"all {len(places)}" if len(beyond) == len(places) else f"{len(beyond)} of {len(places)}"
        words = f"{number} {name} exceed their budget, by a median factor of {ratio:.2g}"
        enough = max(FEWEST, len(beyond) / 2)
        if len(coarse) >= enough and (_in_common(rows, coarse) or not _have_direction([rows[at] for at in coarse])):
            inside = _in_common(rows, coarse) or "coarser arithmetic inside"
            words = f"{words}: explained by {inside} (a setting, not one operator)"
            found.append(KindExplanation(words, frozenset(coarse).intersection(alone), is_setting=True))
        elif len(alike) >= enough and not any(rows[place].explained_by for place in alike):
            words = f"{words}: similar errors, explained by another formula, not by coarser arithmetic"
            found.append(KindExplanation(words, frozenset(), frozenset(alike).intersection(alone)))
        elif _in_common(rows, beyond) and len(beyond) == len(places):  # this excuses no operator
            found.append(KindExplanation(f"all {len(places)} {name}: {_in_common(rows, beyond)}", frozenset()))
    return found


def _rounded_to_one_side(
    rows: Sequence[ReplayedOutput], operators: Mapping[int, Operator]
) -> Iterator[KindExplanation]:
    """Yield the kinds of which two operators or more, and most, are rounded to one side. The results of all of them
    count together, so each may have few."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.rounding is not None and row.rounding.inexact and row.verdict is not ReplayVerdict.UNKNOWN:
            kinds[operators[row.order].kind].append(place)
    for name, places in kinds.items():
        counts = [rows[place].rounding or RoundingCounts() for place in places]
        total = reduce(RoundingCounts.plus, counts)
        alike = [place for place, one in zip(places, counts) if one.missed and one.direction == total.direction]
        if not total.is_one_sided or len({rows[place].order for place in alike}) < 2:
            continue
        if sum(counts[places.index(place)].inexact for place in alike) < KIND_SHARE * total.inexact:
            continue
        number = f"all {len(places)}" if len(alike) == len(places) else f"{len(alike)} of {len(places)}"
        how = total.words()
        words = f"{number} {name} are {how}: a setting, not one operator"
        yield KindExplanation(words, frozenset(), frozenset(alike), total.direction)


def _kinds(
    rows: Sequence[ReplayedOutput], operators: Mapping[int, Operator]
) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield the places of outputs of one kind, and those that it explains. Products of kinds that are too small are
    compared with products of all kinds, because one unit rounds their operands."""
    kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.rms_ratio is not None and row.budget not in ("", "exact"):
            kinds[operators[row.order].kind, row.slot].append(place)
    small: list[int] = []
    products: list[int] = []
    for (kind, slot), places in kinds.items():
        yield f"{kind} {slot}", places, places
        if op_type(operators[rows[places[0]].order].op_type).has("contracts"):
            products += [place for place in places if not _is_vector(rows[place], operators)]
            small += places if len({rows[place].order for place in places}) < FEWEST else []
    if small:
        yield "products", sorted(products), small


def _is_vector(row: ReplayedOutput, operators: Mapping[int, Operator]) -> bool:
    """Return whether a row is the gradient of a bias, which is a sum and no product."""
    return any(one.slot == row.slot and len(one.shape) == 1 for one in operators[row.order].tensors)


def _in_common(rows: Sequence[ReplayedOutput], places: Sequence[int]) -> str:
    """Return the hypothesis that explains all rows; "" if none does."""
    words = {rows[place].explained_by for place in places}
    return words.pop() if len(words) == 1 else ""


def mark_doubtful(rows: Sequence[ReplayedOutput], operators: Mapping[int, Operator]) -> list[ReplayedOutput]:
    """Return the rows. If activations are recomputed in the backward pass, gradients read tensors that the second
    forward saved. If a forward is guilty, these may differ from the recorded tensors, so later guilty gradients become
    UNKNOWN."""
    phases = [(order, operators[order].phase) for order in sorted(operators)]
    back = next((order for order, phase in phases if phase == "backward"), None)
    if back is None or not any(phase == "forward" and order > back for order, phase in phases):
        return [*rows]
    wrong = (
        row.order for row in rows if row.verdict is ReplayVerdict.GUILTY and operators[row.order].phase == "forward"
    )
    first = min(wrong, default=None)
    after = (one for order, one in operators.items() if first is not None and order > first)
    calls = {one.call for one in after if one.phase == "forward"}
    words = "activations were recomputed in the backward pass, after a guilty forward: it may have read other values"
    found = []
    for row in rows:
        operator = operators[row.order]
        if row.verdict is ReplayVerdict.GUILTY and operator.phase == "backward" and operator.call in calls:
            row = row._replace(verdict=ReplayVerdict.UNKNOWN, explanation=words)
        found.append(row)
    return found


def excuse_kinds(rows: Sequence[ReplayedOutput], kinds: Sequence[KindExplanation]) -> list[ReplayedOutput]:
    """Return the rows. Rows of explained kinds become AMPLIFIER with the reason. Clean rows of a kind that is rounded
    to one side become GUILTY."""
    found = [*rows]
    for kind in kinds:
        for place in kind.alike:
            if found[place].verdict is ReplayVerdict.CLEAN:
                found[place] = found[place]._replace(verdict=ReplayVerdict.GUILTY, explanation=kind.words)
        for place in kind.rows:
            found[place] = found[place]._replace(
                verdict=ReplayVerdict.AMPLIFIER, explanation=f"explained: {kind.words}"
            )
    return found


def _is_alike(row: ReplayedOutput, ratio: float, error: float) -> bool:
    """Return whether the error of a row is similar to that of its kind: relative to the expected error, which grows
    with the terms of sums, or to the values, as for rounded operands."""
    if row.rms_ratio is None or row.rel_l2 is None or row.nonfinite:
        return False
    return row.rms_ratio <= OUTLIER * ratio or row.rel_l2 <= OUTLIER * error


def _is_coarse(row: ReplayedOutput) -> bool:
    """Return whether coarse arithmetic can cause the error of a row."""
    if row.rel_l2 is None or row.rel_l2_u is None:
        return False
    low = row.rel_l2_u and row.rel_l2 / row.rel_l2_u > 2.0**-12  # its unit is that of a 16-bit type
    return row.rel_l2_u <= IN_16_BITS if low else row.rel_l2 <= COARSE


def _have_direction(rows: Sequence[ReplayedOutput]) -> bool:
    """Return whether the errors of all rows lie on one side of the values, toward zero or away from it."""
    shares = [(row.bias or 0.0) / row.rel_l2_u if row.rel_l2_u else 0.0 for row in rows]
    return min(shares) >= DIRECTED or max(shares) <= -DIRECTED
