"""The errors that operators of both runs have against float64 of their own recorded inputs, by numpy.

The search asks for one operator at a time (localise/recomputation.py). What is computed depends on the two dumps alone,
never on time or on other installed packages, so that two comparisons give the same bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cached_property
from typing import Callable, Mapping, Optional, Sequence

from npucmp.dump.context import ReadContext
from npucmp.dump.formats import calls_of
from npucmp.errors import NpucmpError
from npucmp.model import REPLAYED, Judged, Operator, Replayed, Run
from npucmp.model.optypes import op_type_of
from npucmp.recompute.numpy_engine import NumpyEngine
from npucmp.recompute.peers import excused, explained
from npucmp.recompute.stored import READ_ERRORS
from npucmp.recompute.task import GRAPH, Settings, Task, kind_of, tasks_of

# elements of the tensors of an operator, and products of a matrix product per element of those: work
LARGEST = 1 << 22
MOST = 1 << 25  # elements of all operators together: work: the search asks in the order of execution
SAMPLE = 16  # operators: work: of as many that can be recomputed one is, whatever the search knows of it
PEERS = 8  # operators: work: peers of a guilty one, which tell a setting of the device from a fault


class Estimator:
    """The operators of the target (side 0) and the golden (side 1) against float64 of their own inputs.

    runs     opens both runs; it is called when the search first asks
    reduced  matrix products of the run have operands of 11 bits, so that no budget of float32 holds for them
    """

    def __init__(self, runs: Callable[[], Sequence[Run]], context: ReadContext, reduced: bool = False) -> None:
        self._open, self._context, self._reduced = runs, context, reduced
        self._engine, self._settings = NumpyEngine(), Settings()
        self._found: dict[tuple[int, int], tuple[Replayed, ...]] = {}
        self._left = MOST
        self.recomputed: set[int] = set()  # orders of target operators

    def rows(self, side: int, operator: Optional[Operator]) -> tuple[Replayed, ...]:
        """Return a row for each output of an operator; () where numpy does not recompute the operator.

        A guilty operator is no fault where all operators of its kind are off alike: its rows say AMPLIFIER then.
        """
        task = None if operator is None else self._tasks[side].get(operator.order)
        if task is None or operator is None or task.operator.name != operator.name:
            return ()
        rows = self._rows(side, task)
        if any(row.verdict is Judged.GUILTY for row in rows):
            rows = self._among_peers(side, task)
        if side == 0 and any(row.status == REPLAYED for row in rows):
            self.recomputed.add(operator.order)
        return rows

    @property
    def by_engine(self) -> Mapping[str, int]:
        """How many operators of the target each engine recomputed."""
        return {"numpy": len(self.recomputed)} if self.recomputed else {}

    def is_sampled(self, operator: Optional[Operator]) -> bool:
        """Whether an operator of the target is among those that are recomputed whatever the search knows of them."""
        return operator is not None and operator.order in self._sample

    @cached_property
    def _sample(self) -> frozenset[int]:
        return frozenset([*self._tasks[0]][SAMPLE // 2 :: SAMPLE])

    @cached_property
    def _tasks(self) -> tuple[Mapping[int, Task], ...]:
        return tuple(map(self._tasks_of, self._open()))

    def _tasks_of(self, run: Run) -> dict[int, Task]:
        try:
            calls = calls_of(run, self._context)
        except (NpucmpError, OSError):  # the records changed since they were read
            return {}
        return {task.operator.order: task for task in tasks_of(run, calls) if task.outputs and self._is_due(task)}

    def _is_due(self, task: Task) -> bool:
        op = op_type_of(task.operator)
        if self._reduced and op.has("contracts"):
            return False
        tensors = [tensor for one in (task.operator, task.forward) if one is not None for tensor in one.tensors]
        sizes = sorted(math.prod(tensor.shape) for tensor in tensors)
        if not sizes or sizes[-1] > LARGEST:
            return False
        if op.has("contracts") and len(sizes) > 2 and math.sqrt(math.prod(map(float, sizes[-3:]))) > LARGEST * 64.0:
            return False  # of a product of n·k by k·m elements that is n·k·m
        return not self._engine.refuses(task)[0]

    def _rows(self, side: int, task: Task) -> tuple[Replayed, ...]:
        key = side, task.operator.order
        if key not in self._found:
            self._left -= sum(math.prod(one.shape) for one in task.operator.tensors)
            self._found[key] = self._computed(task) if self._left >= 0 else ()
        return self._found[key]

    def _computed(self, task: Task) -> tuple[Replayed, ...]:
        """The rows of a task; none where its record cannot be read, or does not fit its formula."""
        try:
            return tuple(self._engine.replay(task, self._context, self._settings))
        except (*READ_ERRORS, ArithmeticError, LookupError, MemoryError, TypeError, ValueError):
            return ()

    @cached_property
    def _kinds(self) -> tuple[Mapping[str, list[Task]], ...]:
        found = tuple(defaultdict[str, "list[Task]"](list) for _ in self._tasks)
        for kinds, tasks in zip(found, self._tasks):
            for task in tasks.values():
                kinds[_kind(task)].append(task)
        return found

    def _among_peers(self, side: int, task: Task) -> tuple[Replayed, ...]:
        """The rows of a guilty operator, excused where its peers are off alike."""
        peers = [one for one in self._kinds[side][_kind(task)] if one is not task][:PEERS]
        rows = [row for one in (task, *peers) for row in self._rows(side, one)]
        operators = {one.operator.order: one.operator._replace(kind=_kind(one)) for one in (task, *peers)}
        return tuple(row for row in excused(rows, explained(rows, operators)) if row.order == task.operator.order)


def _kind(task: Task) -> str:
    return kind_of(task.operator, task.call.prefix if task.call.prefix.startswith(GRAPH) else "")
