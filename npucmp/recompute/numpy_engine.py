"""The numpy engine: operators of graphs (GE, TensorFlow, MindSpore), common PyTorch calls and their gradients."""

from __future__ import annotations

from pathlib import Path

from npucmp.dump.limits import ReadContext
from npucmp.model import REPLAYED, ReplayedOutput
from npucmp.model.optypes import op_type
from npucmp.recompute.arguments import NotInTable
from npucmp.recompute.table import STOPPED, row_of
from npucmp.recompute.task import GRAPH, ReplaySettings, Task


class NumpyEngine:
    """See task.Engine."""

    name = "numpy"

    def missing(self) -> str:
        return ""

    def refuses(self, task: Task) -> tuple[str, str]:
        if not task.call.prefix.startswith(GRAPH):
            return _refused_call(task)
        from npucmp.recompute.numpy_table import plan_of

        kind = op_type(task.operator.op_type)
        if kind.has("random"):
            return "random", "it draws random numbers"
        if kind.has("collective"):
            return "not in table", "it needs the tensors of other ranks"
        try:
            plan_of(task.operator)
        except NotInTable as error:
            return error.status, str(error)
        return "", ""

    def start(self, settings: ReplaySettings) -> None:
        from npucmp.recompute import numpy_results  # noqa: F401 import in advance; it takes time

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
        from npucmp.recompute import numpy_results

        return numpy_results.replay_rows(task, context, settings)


def _refused_call(task: Task) -> tuple[str, str]:
    """The same as NumpyEngine.refuses, for a recorded call."""
    from npucmp.recompute.call_table import formula_of

    call = task.forward_call if task.is_backward else task.call
    name = f"{task.call.prefix}.{task.call.name}"
    if task.call.prefix.rpartition(".")[2] in ("Module", "Cell"):
        return "container", "a module is not a single call, and its record has no hyper-parameters"
    row = row_of(task.call)
    formula = formula_of(task.call)
    if row is not None and row.kind in STOPPED:
        return STOPPED[row.kind]
    if row is None or formula is None or (task.is_backward and formula.backward is None):
        what = "the gradient of a call" if task.is_backward and formula is not None else "a call"
        return "not in table", f"{name} is {what} that {'only torch' if row is not None else 'no engine'} can replay"
    if call is None or (task.is_backward and task.forward is None):
        return "no data", "the forward that it reads was not dumped"
    if not call.args and not call.kwargs:
        return "no data", "the inputs of this call were not dumped"
    return "", ""


class NumpyCaseEngine(NumpyEngine):
    """Replays one call of a record, or its gradients, and writes its case (repro_case.py) into an existing
    empty folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def refuses(self, task: Task) -> tuple[str, str]:
        if task.call.prefix.startswith(GRAPH):
            return "not in table", "a case can be written for a recorded call only, not for an operator of a graph"
        return super().refuses(task)

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
        rows, row = super().replay(task, context, settings), row_of(task.call)
        slots = [one.slot for one in rows if one.status == REPLAYED]
        if row is not None and slots:
            from npucmp.recompute import numpy_case

            numpy_case.write(task, row, context, settings, self._folder, slots)
        return rows
