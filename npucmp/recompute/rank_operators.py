"""Recompute an operator that several ranks have put together, from the recorded inputs of each rank.

Each rank's own operator may be right although the whole is not: a softmax over a part of a row. So the ranks are
recomputed only where each element of the result depends on the same element of the operands alone.
"""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import REPLAYED, Operator, ReplayedOutput, ReplayVerdict, Run
from npucmp.model.optypes import op_type_of
from npucmp.model.replayed_output import FarElements
from npucmp.recompute.estimator import RecomputedOperators


class RankOperators:
    """The operators of a target that was put together (side 0) and of the golden (side 1); `ranks`: the target's runs
    by rank."""

    def __init__(self, ranks: Mapping[int, Run], golden: Run, context: ReadContext, reduced: bool = False) -> None:
        self._golden = RecomputedOperators(lambda: (golden, golden), context, reduced)
        self._by_name = {rank: {one.name: one for one in run.operators} for rank, run in ranks.items()}
        self._ranks = {rank: _estimator(run, golden, context, reduced) for rank, run in ranks.items()}
        self._recomputed: set[int] = set()

    def rows(self, side: int, operator: Optional[Operator]) -> Sequence[ReplayedOutput]:
        """Return a row for each output: of the target, the worst of all ranks; empty if a rank is not recomputed."""
        if side == 1 or operator is None:
            return self._golden.rows(side, operator)
        if not op_type_of(operator).has("elementwise") or operator.phase == "backward":
            return ()
        worst: dict[str, ReplayedOutput] = {}
        for rank, name in _operators(operator):
            own = self._by_name[rank].get(name)
            found = self._ranks[rank].rows(0, own)
            if not any(row.status == REPLAYED for row in found):
                return ()
            for row in found:
                known = worst.get(row.slot)
                worst[row.slot] = row if known is None else max(known, row, key=_severity)
        if worst:
            self._recomputed.add(operator.order)
        return tuple(row._replace(order=operator.order) for row in worst.values())

    def gradients_as_golden(self, target: Operator, golden: Operator) -> Sequence[ReplayedOutput]:
        """Return no row: gradients are not recomputed by ranks."""
        return ()

    def far_elements(self, target: Operator, golden: Operator, slot: str) -> Optional[FarElements]:
        """Return None: the elements of a rank are not read again."""
        return None

    def is_sampled(self, operator: Optional[Operator]) -> bool:
        """Return False: an operator is recomputed if the search suspects it."""
        return False

    def is_setting(self, operator: Optional[Operator]) -> bool:
        """Return False: no operator is compared with those of its kind."""
        return False

    @property
    def by_engine(self) -> Mapping[str, int]:
        """The number of target operators that each engine recomputed."""
        return {"numpy": len(self._recomputed)} if self._recomputed else {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the operators of a rank that the system did not let recompute."""
        return tuple(note for one in (self._golden, *self._ranks.values()) for note in one.notes)


def _estimator(run: Run, golden: Run, context: ReadContext, reduced: bool) -> RecomputedOperators:
    return RecomputedOperators(lambda: (run, golden), context, reduced)


def _operators(operator: Operator) -> Sequence[tuple[int, str]]:
    """The rank and name of each operator that an operator was put together of."""
    relations = [one.relation for one in operator.tensors if one.relation is not None]
    return relations[0].operators if relations else ()


def _severity(row: ReplayedOutput) -> tuple[bool, bool, float]:
    return row.status != REPLAYED, row.verdict is not ReplayVerdict.CLEAN, max(row.rms_ratio or 0.0, row.rel_l2 or 0.0)
