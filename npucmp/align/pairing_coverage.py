"""The coverage of one run by the other, in words: where a side ends early or begins late, and which phases it lacks.

localise/coverage.py decides whether the golden run is covered. Modules count only if no other operators were dumped,
because they add nothing to the operators inside them.
"""

from __future__ import annotations

from itertools import groupby
from typing import Iterator, NamedTuple, Sequence

from npucmp.align.updates import one_sided_updates
from npucmp.model import Operator, Pair

END_OPERATORS = 2  # operators at an end: chosen: so many may be missing or have other names

BOTH, TARGET, GOLDEN = "both", "target", "golden"


class PairingCoverage(NamedTuple):
    """Words about the parts of the network that one side lacks. Words in `incomplete` leave repeated runs undecided."""

    words: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()


class _OperatorRow(NamedTuple):
    """An operator and the sides that have it."""

    side: str
    operator: Operator


def extent(
    pairs: Sequence[Pair],
    ordered: bool = True,
    called: tuple[str, str] = ("the target", "the golden"),
    again: frozenset[int] = frozenset(),
) -> PairingCoverage:
    """Describe the coverage of the compared pairs, which are in merged graph order.

    If `ordered` is False, the dump has no order of execution and the ends are unknown. `called` are the names of target
    and golden in words. `again` are the places of recomputed operators, which are not part of the network.
    """
    if all(pair.target and pair.golden and pair.target_op and pair.golden_op for pair in pairs):
        return PairingCoverage()
    rows, incomplete, lacking = _rows([pair for pair in pairs if pair.order not in again]), [], []
    for short, long, name in ((TARGET, GOLDEN, called[0]), (GOLDEN, TARGET, called[1])):
        incomplete += [f"{name} {words}" for words in _ends(rows, short, long)] if ordered else []
        lacking += [f"{name} has no {phase} operators" for phase in _lacking(rows, short, long)]
    return PairingCoverage((*incomplete, *lacking, *one_sided_updates(pairs)), tuple(incomplete))


def _lacking(rows: Sequence[_OperatorRow], short: str, long: str) -> list[str]:
    """Phases that one side has and the other lacks. An operator without a phase counts as forward."""
    own, other = ({row.operator.phase for row in rows if row.side in (BOTH, side)} for side in (short, long))
    return sorted(other - own - ({"", "forward"} if "" in own else {""})) if own else []


def _rows(pairs: Sequence[Pair]) -> list[_OperatorRow]:
    """One row per operator of the network."""
    firsts = [next(group) for _, group in groupby(pairs, key=lambda pair: pair.order)]
    matched = {op.name for one in firsts if one.target_op and one.golden_op for op in (one.target_op, one.golden_op)}
    rows = []
    for one in firsts:
        operator, both = one.operator, one.target_op is not None and one.golden_op is not None
        earlier = operator.unique and operator.name in matched  # another execution of it was compared
        if both or not (operator.inserted or earlier):
            rows.append(_OperatorRow(BOTH if both else TARGET if one.target_op else GOLDEN, operator))
    return [row for row in rows if not row.operator.path] or rows


def _ends(rows: Sequence[_OperatorRow], short: str, long: str) -> Iterator[str]:
    """Where a side begins late or ends early: more operators are missing there than at any place in between."""
    numbered = [row.operator for row in rows if row.side in (BOTH, long)]
    phases = {row.operator.phase for row in rows if row.side in (BOTH, short)}
    rows = [row for row in rows if row.operator.phase in phases]
    places = [place for place, row in enumerate(rows) if row.side == BOTH]
    if not places:
        return
    between = [_surplus(rows[a:b], short, long) for a, b in zip(places, places[1:])]
    most = max([END_OPERATORS, *between])
    first, last = rows[places[0]].operator, rows[places[-1]].operator
    for missing, verb, where, operator in (
        (_surplus(rows[: places[0]], short, long), "begins", "with", first),
        (_surplus(rows[places[-1] :], short, long), "ends", "after", last),
    ):
        if missing > most:
            at = numbered.index(operator) + 1
            yield f"{verb} at operator {at} of the network's {len(numbered)}, {where} {operator.name}"


def _surplus(rows: Sequence[_OperatorRow], short: str, long: str) -> int:
    """The surplus of operators of one side in these rows. As many on the other side may be the same under other
    names."""
    return sum((row.side == long) - (row.side == short) for row in rows)
