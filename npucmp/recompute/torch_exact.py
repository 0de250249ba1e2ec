"""The float64 results of a call by torch, for carrying the errors of its outputs. Only child processes import this."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import torch

from npucmp.dump.limits import ReadContext
from npucmp.model import ReplayedOutput
from npucmp.recompute.arguments import CALL_ERRORS, read
from npucmp.recompute.table import CallRow
from npucmp.recompute.task import ReplaySettings, Task
from npucmp.recompute.torch_backward import choose_candidates, gradients, incoming_gradients, leaves_of, saved_by
from npucmp.recompute.torch_bind_call import Bound, bind
from npucmp.recompute.torch_hypotheses import call_of, changed_result
from npucmp.recompute.torch_results import numpy_of


class TorchExact:
    """The results of a call, or its gradients, in float64. `like` is the same call with other inputs, whose choice of
    gradients is taken."""

    def __init__(
        self, task: Task, row: CallRow, context: ReadContext, settings: ReplaySettings, like: Optional[TorchExact]
    ) -> None:
        operator, call = (task.forward, task.forward_call) if task.is_backward else (task.operator, task.call)
        assert operator is not None and call is not None
        self._task, self._context = task, context
        self._bound = bind(operator, call, row, context, settings.memory)
        self._sources: tuple[list[Any], list[Any]] = [], []
        self._chosen: Any = None
        if task.is_backward:
            self._sources = incoming_gradients(task, context), saved_by(task, self._bound, context)
            self._chosen = like._chosen if like is not None else self._choose()
        self._values = self._results(self._bound)

    @property
    def values(self) -> Mapping[str, Any]:
        """The results by slot, as arrays."""
        return {slot: numpy_of(one).reshape(one.shape) for slot, one in self._values.items()}

    def models(self, row: ReplayedOutput, other: TorchExact) -> Optional[tuple[Any, Any]]:
        """Return the results that the hypothesis of a GUILTY row gives for these and for other inputs, as arrays; None
        without a hypothesis."""
        slot, words = row.slot, row.explained_by
        if not words or slot not in self._values or slot not in other._values:
            return None
        tensor = next(one for one in self._task.outputs if one.slot == slot)
        recorded = read(tensor, self._context)
        found = changed_result(row, tensor, recorded, self._values[slot], other._values[slot])
        if found is not None:
            return found[0], found[1]
        calls = [call_of(words, one._bound) for one in (self, other)]
        if any(one is None for one in calls):
            return None
        try:
            with torch.no_grad():
                results = [one._results(call).get(slot) for one, call in zip((self, other), calls) if call is not None]
        except CALL_ERRORS:  # not every kernel exists for every type
            return None
        own, others = (None if one is None else numpy_of(one.to(torch.float64)).reshape(one.shape) for one in results)
        return None if own is None or others is None else (own, others)

    def _results(self, bound: Bound) -> dict[str, Any]:
        if not self._task.is_backward:
            with torch.no_grad():
                results = bound.call()
            return {
                slot: one
                for slot, one in zip(bound.slots, results)
                if slot is not None and isinstance(one, torch.Tensor) and one.numel()
            }
        found = gradients(bound, *self._sources)
        return {
            tensor.slot: form(found[at])
            for tensor, (at, form) in zip(self._task.outputs, self._chosen)
            if 0 <= at < len(found) and found[at] is not None
        }

    def _choose(self) -> Any:
        outputs = self._task.outputs
        recorded = {one.slot: read(one, self._context) for one in outputs}
        return choose_candidates(outputs, recorded, gradients(self._bound, *self._sources), len(leaves_of(self._bound)))
