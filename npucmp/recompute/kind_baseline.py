"""What all operators of a kind have in common: a setting of the device, not a fault of one of them.

Where (nearly) every output of a kind is beyond its budget, and by about as much, they are computed more coarsely than
their type (products in HF32, an exp in float16): one line for the kind, and nobody is guilty. That holds up to the
error that such a setting makes; and one that stands out of its peers is guilty all the same.

Coarser arithmetic rounds to nearest, which has no direction. An error that lies on one side of the values in all
operators of a kind is that of another formula: a factor, a term that is missing, an approximation. So is a larger one
than half precision leaves. That is one finding: the operators are guilty, and one line tells that all are. Evidence:
the mean error toward zero is 0.05 of the relative error at most in GELUs with half precision inside, 1.0 of a factor,
1.3 to 4 of the approximation by tanh, 3.3 of a missing term.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Iterator, Mapping, NamedTuple, Sequence

from npucmp.model import Judged, Operator, Replayed
from npucmp.model.optypes import op_type

FEWEST = 3  # operators that make a kind
NEARLY = 0.9  # of them that are beyond their budget: the others may hold values that nothing rounds
OUTLIER = 4.0  # times the median: no peer
COARSE = 2.0**-10  # relative error that half precision inside a float32 operator leaves
IN_16_BITS = 4.0  # units of a 16-bit type
DIRECTED = 0.5  # of the relative error is the mean error toward or from zero: roundings to nearest average out


class Explained(NamedTuple):
    """A kind in words, the rows that it excuses, by place, and those that another formula makes guilty alike."""

    words: str
    rows: frozenset[int]
    alike: frozenset[int] = frozenset()


def explained(rows: Sequence[Replayed], operators: Mapping[int, Operator]) -> list[Explained]:
    """Kinds of operators that are beyond their budgets alike."""
    found = []
    for name, places, alone in _kinds(rows, operators):
        beyond = [place for place in places if rows[place].verdict in (Judged.GUILTY, Judged.AMPLIFIER)]
        if len({rows[place].order for place in beyond}) < FEWEST or len(beyond) < NEARLY * len(places):
            continue
        ratio, error = (
            median(getattr(rows[place], name) or 0.0 for place in beyond) for name in ("rms_ratio", "rel_l2")
        )
        alike = [place for place in beyond if _is_alike(rows[place], ratio, error)]
        coarse = [place for place in alike if _is_coarse(rows[place])]
        number = f"all {len(places)}" if len(beyond) == len(places) else f"{len(beyond)} of {len(places)}"
        words = f"{number} {name} lie beyond their budget, in the middle {ratio:.2g} times"
        enough = max(FEWEST, len(beyond) / 2)
        if len(coarse) >= enough and (_in_common(rows, coarse) or not _have_direction([rows[at] for at in coarse])):
            inside = _in_common(rows, coarse) or "coarser arithmetic inside"
            words = f"{words}: explained by {inside} (a setting, not one operator)"
            found.append(Explained(words, frozenset(coarse).intersection(alone)))
        elif len(alike) >= enough and not any(rows[place].explained_by for place in alike):
            words = f"{words}: alike, as another formula makes them, and no coarser arithmetic"
            found.append(Explained(words, frozenset(), frozenset(alike).intersection(alone)))
        elif _in_common(rows, beyond) and len(beyond) == len(places):  # nobody is excused by that
            found.append(Explained(f"all {len(places)} {name}: {_in_common(rows, beyond)}", frozenset()))
    return found


def _kinds(rows: Sequence[Replayed], operators: Mapping[int, Operator]) -> Iterator[tuple[str, list[int], list[int]]]:
    """Outputs of one kind by place, and which of them it speaks for. Products of kinds that are too small are held
    against those of all kinds: what rounds their operands is the unit that computes them."""
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


def _is_vector(row: Replayed, operators: Mapping[int, Operator]) -> bool:
    """The gradient of a bias is a sum, and no product."""
    return any(one.slot == row.slot and len(one.shape) == 1 for one in operators[row.order].tensors)


def _in_common(rows: Sequence[Replayed], places: Sequence[int]) -> str:
    """The hypothesis that explains all of them, "" if none does."""
    words = {rows[place].explained_by for place in places}
    return words.pop() if len(words) == 1 else ""


def doubted(rows: Sequence[Replayed], operators: Mapping[int, Operator]) -> list[Replayed]:
    """Where activations are not kept, forwards run again on the way back, and backwards read what those saved. That is
    what was recorded, unless a forward is guilty: of gradients after it nobody can say what they were made of."""
    phases = [(order, operators[order].phase) for order in sorted(operators)]
    back = next((order for order, phase in phases if phase == "backward"), None)
    if back is None or not any(phase == "forward" and order > back for order, phase in phases):
        return [*rows]
    wrong = (row.order for row in rows if row.verdict is Judged.GUILTY and operators[row.order].phase == "forward")
    first = min(wrong, default=None)
    after = (one for order, one in operators.items() if first is not None and order > first)
    calls = {one.call for one in after if one.phase == "forward"}
    words = "activations were computed again on the way back, after a forward that is guilty: it may have read others"
    found = []
    for row in rows:
        operator = operators[row.order]
        if row.verdict is Judged.GUILTY and operator.phase == "backward" and operator.call in calls:
            row = row._replace(verdict=Judged.UNKNOWN, explanation=words)
        found.append(row)
    return found


def excused(rows: Sequence[Replayed], kinds: Sequence[Explained]) -> list[Replayed]:
    """The rows, those of explained kinds as amplifiers with the reason."""
    found = [*rows]
    for kind in kinds:
        for place in kind.rows:
            found[place] = found[place]._replace(verdict=Judged.AMPLIFIER, explanation=f"explained: {kind.words}")
    return found


def _is_alike(row: Replayed, ratio: float, error: float) -> bool:
    """Whether a row is like most of its kind: relative to what is due, which grows with the terms of sums, or to the
    values, as rounded operands are."""
    if row.rms_ratio is None or row.rel_l2 is None or row.nonfinite:
        return False
    return row.rms_ratio <= OUTLIER * ratio or row.rel_l2 <= OUTLIER * error


def _is_coarse(row: Replayed) -> bool:
    """Whether the error of a row is no larger than coarse arithmetic makes it."""
    if row.rel_l2 is None or row.rel_l2_u is None:
        return False
    low = row.rel_l2_u and row.rel_l2 / row.rel_l2_u > 2.0**-12  # its unit is that of a 16-bit type
    return row.rel_l2_u <= IN_16_BITS if low else row.rel_l2 <= COARSE


def _have_direction(rows: Sequence[Replayed]) -> bool:
    """Whether the errors of all rows lie on one side of the values, toward zero or away from it."""
    shares = [(row.bias or 0.0) / row.rel_l2_u if row.rel_l2_u else 0.0 for row in rows]
    return min(shares) >= DIRECTED or max(shares) <= -DIRECTED
