"""Compare collectives that leave one tensor on all ranks: if the golden's ranks hold the same, the target's must too.

The content of the golden shows which ranks should hold the same. The target's tensors are compared by their statistics:
extremes, norm and sum. Ring and tree algorithms reduce every chunk on one rank and distribute it, so equal ranks are
bit-equal; the tolerance still allows one rounding of every element.
"""

from __future__ import annotations

import math
from typing import Mapping, NamedTuple, Sequence

from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import BOTH_SIDES, round_off_of
from npucmp.model import Side
from npucmp.model.optypes import op_type_of


class CollectiveOutput(NamedTuple):
    """An output of a collective on one rank: the golden's content, the target's statistics, the error between the two,
    and the largest relative difference of two ranks that rounding may cause."""

    slot: str
    content: int
    target: Side
    error: float
    room: float


class Inequality(NamedTuple):
    """The relative difference between the tensors of two ranks, and the largest difference that rounding may cause."""

    size: float
    room: float
    words: str


def outputs_of(node: OperatorFindings) -> list[CollectiveOutput]:
    """The outputs of a collective that other ranks may hold too; empty for other operators and without values."""
    op = op_type_of(node.operator)
    if not op.has("collective") or op.has("point to point", "asynchronous"):
        return []
    return [
        CollectiveOutput(one.pair.slot, content, moments.target, one.error or 0.0, BOTH_SIDES * round_off_of(one.pair))
        for one in node.outputs
        if (moments := one.measurement.moments) is not None and (content := content_of(one))
    ]


def inequalities(some: Sequence[tuple[int, Sequence[CollectiveOutput]]]) -> list[dict[str, Inequality]]:
    """For each rank, given by its number with the outputs of one collective: the outputs that differ from those of
    other ranks although the golden's are equal, by slot. The rank with the larger error of two is reported; among
    more ranks, those that differ from most."""
    found: list[dict[str, Inequality]] = [{} for _ in some]
    for at, (rank, outputs) in enumerate(some):
        for one in outputs:
            others = [
                (number, other)
                for place, (number, rest) in enumerate(some)
                for other in rest
                if place != at and other.slot == one.slot and other.content == one.content
            ]
            apart = [(number, size) for number, other in others if (size := _distance(one, other)) > one.room]
            if len(others) == 1:
                own, other = one.error, others[0][1].error
                is_odd = own > other or (own == other and rank > others[0][0])
            else:
                is_odd = 2 * len(apart) > len(others)
            if apart and is_odd:
                number, size = apart[0]
                words = f"it differs from rank {number}'s by {size:.2e} of its size; in the golden both are equal"
                found[at][one.slot] = Inequality(size, one.room, words)
    return found


Unequal = Mapping[int, "Mapping[str, Inequality]"]  # of one rank, by operator number


def _distance(one: CollectiveOutput, other: CollectiveOutput) -> float:
    """The largest relative difference of the statistics of two target tensors: norm and extremes relative to
    themselves, the sum relative to the norm, by which independent roundings of all elements move it; infinity if NaN
    and Inf differ."""
    a, b = one.target, other.target
    if (a.nan, a.posinf, a.neginf) != (b.nan, b.posinf, b.neginf):
        return math.inf
    norms = math.sqrt(a.squares), math.sqrt(b.squares)
    pairs = (norms, (a.minimum, b.minimum), (a.maximum, b.maximum))
    relative = [abs(x - y) / max(abs(x), abs(y)) for x, y in pairs if x != y]
    relative += [abs(a.total - b.total) / max(norms)] if max(norms) else []
    return max(relative, default=0.0)
