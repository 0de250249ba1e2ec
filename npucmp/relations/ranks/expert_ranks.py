"""The ranks that hold an operator: all of a stage, or those that have its expert."""

from __future__ import annotations

from typing import Any, Hashable, Mapping

from npucmp.relations.held_values import RankOperator
from npucmp.relations.ranks.rank_run import RankRun


class ExpertRanks:
    """The ranks of each golden operator. An expert has a parameter that no other rank of its stage reads."""

    def __init__(self, ranks: Mapping[int, RankRun], golden: RankRun, stages: Mapping[int, int],
                 partners: Mapping[str, Mapping[tuple[int, int], RankOperator]],
                 ranks_of: Mapping[int, set[int]]) -> None:  # fmt: skip
        self._stages, self._golden = stages, golden
        self._holders = {name: frozenset(rank for rank, _ in some) for name, some in partners.items()}
        self._batch_ranks = {one.name: ranks_of[at] for at, batch in enumerate(golden.micro_batches)
                             if at in ranks_of for one in batch}  # fmt: skip
        own = {rank: {*_parameters(run)} for rank, run in ranks.items()}
        self._experts: set[frozenset[int]] = set()
        for one in golden.operators:
            others = self.others(one)
            if not others or one.is_backward:
                continue
            for partner in partners[one.name].values():
                read = {*_weights(partner)}
                if read and not any(read & own[rank] for rank in others):
                    self._experts.add(self._holders[one.name])

    def holders(self, golden: RankOperator) -> frozenset[int]:
        return self._holders.get(golden.name, frozenset())

    def is_of_some_ranks(self, golden: RankOperator) -> bool:
        """Whether some ranks of its stage do not have an operator."""
        return bool(self.others(golden))

    def lacks_a_rank(self, golden: RankOperator) -> bool:
        """Whether some ranks of its stage do not have an operator that is of no expert. Updates may be split over
        ranks."""
        if golden.is_backward:
            calls = self._golden.of_call(golden.op.call) if golden.op.call else []
            return any(self.lacks_a_rank(one) for one in calls if not one.is_backward)
        if self._golden.is_update(golden) or not self.others(golden):
            return False
        return self.holders(golden) not in self._experts

    def others(self, golden: RankOperator) -> list[int]:
        """The ranks of its stage that do not have an operator."""
        holders = self.holders(golden)
        stages = {self._stages[rank] for rank in holders}
        batch = self._batch_ranks.get(golden.name, {*self._stages})
        return [rank for rank in batch if self._stages[rank] in stages and rank not in holders]


def _weights(operator: RankOperator) -> list[Hashable]:
    """The contents of the parameters that an operator reads."""
    return [one.content for one in operator.weights if one.content is not None]


def _parameters(run: RankRun) -> list[Any]:
    return [each for one in run.operators if not one.is_backward for each in _weights(one)]
