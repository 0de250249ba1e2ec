"""The float64 results of a record, for carrying the errors of its outputs. Only child processes import this."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from npucmp.dump.limits import ReadContext
from npucmp.model import ReplayedOutput
from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.computation import Computation, compute_operator
from npucmp.recompute.hypotheses import call_of, changed_result
from npucmp.recompute.task import ReplaySettings, Task


class ExactResults:
    """The results of a call, or its gradients, in float64. `like` is the same call with other inputs, whose choice of
    gradients is taken."""

    def __init__(
        self, task: Task, context: ReadContext, settings: ReplaySettings, like: Optional[ExactResults] = None
    ) -> None:
        self._task, known = task, None if like is None else like._work
        self._work: Computation
        self._work, self._exact = compute_operator(task, context, settings, known)
        self.values: Mapping[str, Any] = {
            tensor.slot: self._exact[at].reshape(tensor.shape)
            for at, tensor in self._work.recorded.items()
            if at < len(self._exact) and self._exact[at] is not None and self._exact[at].size
            and self._exact[at].size == self._work.values[at].size
        }  # fmt: skip

    def models(self, row: ReplayedOutput, other: ExactResults) -> Optional[tuple[Any, Any]]:
        """Return the results that the hypothesis of a GUILTY row gives for these and for other inputs, as arrays; None
        without a hypothesis."""
        slot, words = row.slot, row.explained_by
        if not words or slot not in self.values or slot not in other.values:
            return None
        at, tensor = next(both for both in self._work.recorded.items() if both[1].slot == slot)
        found = changed_result(row, tensor, self._work.values[at], self.values[slot], other.values[slot])
        if found is not None:
            return found[0], found[1]
        results = []
        for one in (self, other):
            call = call_of(words, self._task.called, one._work)
            if call is None:
                return None
            try:
                result = call.results(one._work, one._exact)[at]
            except (RefusedRecord, MemoryError):
                return None
            if result is None:
                return None
            results.append(result.reshape(one.values[slot].shape))
        return results[0], results[1]
