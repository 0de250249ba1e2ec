"""All operators of both runs, for compare --recompute all: by numpy, the rest by torch if it is installed.

The rules of the estimator judge the rows (localise/recomputation.py). Child processes with limits of memory and time
recompute all operators when the search first asks for one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property
from typing import Callable, Mapping, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import REPLAYED, Operator, ReplayedOutput, Run
from npucmp.model.optypes import op_type_of
from npucmp.recompute.engine import OperatorEngine
from npucmp.recompute.estimator import RecomputedOperators
from npucmp.recompute.kind_baseline import mark_doubtful
from npucmp.recompute.library import libraries_of
from npucmp.recompute.run import replay_tasks
from npucmp.recompute.task import Task

JOBS = 8  # processes at most by default: each may load a torch


class EveryOperator(RecomputedOperators):
    """See RecomputedOperators. `jobs` is the number of processes."""

    def __init__(self, runs: Callable[[], Sequence[Run]], context: ReadContext, reduced: bool, jobs: int) -> None:
        super().__init__(runs, context, reduced)
        self._engine, self._jobs = OperatorEngine(), jobs

    def is_sampled(self, operator: Optional[Operator]) -> bool:
        """Return whether an operator can be recomputed: the search then always uses it."""
        return operator is not None and operator.order in self._tasks[0]

    @property
    def by_engine(self) -> Mapping[str, int]:
        """The number of target operators that each library recomputed."""
        done = [self._tasks[0][order] for order, rows in self._every[0].items()
                if any(row.status == REPLAYED for row in rows)]  # fmt: skip
        return Counter("numpy" if one.is_of_graph else libraries_of(one)[0] for one in done)

    def _is_due(self, task: Task) -> bool:
        is_reduced = self._reduced and op_type_of(task.operator).has("contracts")
        return not is_reduced and not self._engine.refuses(task)[0]

    def _rows(self, side: int, task: Task) -> tuple[ReplayedOutput, ...]:
        return self._every[side].get(task.operator.order, ())

    @cached_property
    def _every(self) -> tuple[Mapping[int, tuple[ReplayedOutput, ...]], ...]:
        """The rows of each operator of both runs. The same processes recompute both."""
        sides = [side for side, tasks in enumerate(self._tasks) for _ in tasks]
        every = [task for tasks in self._tasks for task in tasks.values()]
        rows: tuple[list[ReplayedOutput], ...] = [], []
        for side, results in zip(sides, replay_tasks(every, self._engine, self._context, self._settings, self._jobs)):
            rows[side].extend(results)
        return tuple(map(_by_operator, self._open(), rows))


def _by_operator(run: Run, rows: Sequence[ReplayedOutput]) -> Mapping[int, tuple[ReplayedOutput, ...]]:
    found: dict[int, list[ReplayedOutput]] = defaultdict(list)
    for row in mark_doubtful(rows, {operator.order: operator for operator in run.operators}):
        found[row.order].append(row)
    return {order: tuple(operator_rows) for order, operator_rows in found.items()}
