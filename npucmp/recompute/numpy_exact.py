"""The float64 results of a call by numpy, for carrying the errors of its outputs. Only child processes import this."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from npucmp.dump.limits import ReadContext
from npucmp.model import ReplayedOutput
from npucmp.recompute.numpy_calls import BackwardPlan
from npucmp.recompute.numpy_results import compute_operator, nearest_versions
from npucmp.recompute.table import CallRow
from npucmp.recompute.task import ReplaySettings, Task


class NumpyExact:
    """The results of a call, or its gradients, in float64. `like` is the same call with other inputs, whose choice of
    gradients is taken."""

    def __init__(
        self, task: Task, row: CallRow, context: ReadContext, settings: ReplaySettings, like: Optional[NumpyExact]
    ) -> None:
        self._work, exact = compute_operator(task, context, settings)
        if like is not None and isinstance(like._work.plan, BackwardPlan):
            self._work = self._work._replace(plan=like._work.plan)
            exact = nearest_versions(self._work, self._work.results(self._work.inputs))
        self.values: Mapping[str, Any] = {
            tensor.slot: exact[at].reshape(tensor.shape)
            for at, tensor in self._work.recorded.items()
            if at < len(exact) and exact[at] is not None and exact[at].size and exact[at].size == self._size(at)
        }

    def _size(self, at: int) -> int:
        return int(self._work.values[at].size)

    def models(self, row: ReplayedOutput, other: NumpyExact) -> Optional[tuple[Any, Any]]:
        """Return None: numpy tries no hypotheses."""
        return None
