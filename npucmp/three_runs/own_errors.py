"""The errors that operators add: their outputs in both runs against float64 of the inputs that each run recorded."""

from __future__ import annotations

import math
from typing import Iterable, Mapping, Optional

import numpy as np

from npucmp.dump.formats import calls_of
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.errors import NpucmpError
from npucmp.measure.kernel.numpy_kernel import widen
from npucmp.model import Operator, Run
from npucmp.model.dtypes import unit_of
from npucmp.model.optypes import op_type_of
from npucmp.recompute.arguments import READ_ERRORS
from npucmp.recompute.computation import compute_operator
from npucmp.recompute.engine import OperatorEngine
from npucmp.recompute.sampled_products import is_large
from npucmp.recompute.task import ReplaySettings, Task, tasks_of
from npucmp.three_runs.sums import ErrorSums

LARGEST = 1 << 22  # elements of the tensors of an operator: work


class OwnErrors:
    """The operators of a target and its golden against float64 of their own inputs."""

    def __init__(self, target: Run, golden: Run, context: ReadContext) -> None:
        self._context = context
        self._tasks = [_tasks(run, context) for run in (target, golden)]

    def size(self, target: Operator, golden: Operator) -> Optional[int]:
        """Return the elements of an operator in both runs; None if it cannot be recomputed."""
        tasks = [tasks.get(one.name) for tasks, one in zip(self._tasks, (target, golden))]
        if any(task is None for task in tasks):
            return None
        return sum(math.prod(one.shape) for task in tasks if task is not None for one in task.operator.tensors)

    def sums(self, target: Operator, golden: Operator) -> Mapping[str, ErrorSums]:
        """Return the sums of own errors by slot; {} if an operator cannot be recomputed."""
        found = [self._errors(tasks.get(one.name)) for tasks, one in zip(self._tasks, (target, golden))]
        sums: dict[str, ErrorSums] = {}
        for slot in found[0].keys() & found[1].keys():
            (t, exact_t), (g, exact) = found[0][slot], found[1][slot]
            if t.size == g.size > 0:
                # both errors against one truth, the golden's: its own inputs gave it
                sums[slot] = ErrorSums()
                sums[slot].add(t - exact_t + exact, g, exact, 0, g.size)
        return sums

    def _errors(self, task: Optional[Task]) -> dict[str, tuple[Array, Array]]:
        """Return the recorded and the exact values of the outputs of a task by slot."""
        if task is None:
            return {}
        try:
            work, exact = compute_operator(task, self._context, ReplaySettings(library="numpy"))
            return {
                tensor.slot: (widen(work.values[at]).ravel(), exact[at].astype(np.float64).ravel())
                for at, tensor in work.recorded.items()
                if at < len(exact) and exact[at] is not None and unit_of(tensor.dtype) and work.is_sure(at)
            }
        except (*READ_ERRORS, ArithmeticError, LookupError, TypeError, ValueError):
            return {}


def _tasks(run: Run, context: ReadContext) -> Mapping[str, Task]:
    """Return the tasks that numpy recomputes as a whole, by operator."""
    engine = OperatorEngine("numpy")
    try:
        calls = calls_of(run, context)
    except (NpucmpError, OSError):  # the records changed since they were read
        return {}
    return {task.operator.name: task for task in _due(tasks_of(run, calls), engine)}


def _due(tasks: Iterable[Task], engine: OperatorEngine) -> Iterable[Task]:
    for task in tasks:
        sizes = [math.prod(one.shape) for one in task.operator.tensors]
        is_heavy = op_type_of(task.operator).has("contracts") and is_large(task)
        if sizes and max(sizes) <= LARGEST and not is_heavy and not engine.refuses(task)[0]:
            yield task
