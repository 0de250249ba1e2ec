"""The engine that replays records in child processes.

The parent process asks what can be replayed, and imports no module that computes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from npucmp.dump.limits import ReadContext
from npucmp.model import REPLAYED, ReplayedOutput
from npucmp.model.optypes import op_type
from npucmp.recompute.arguments import NotInTable
from npucmp.recompute.library import has_torch, libraries_of
from npucmp.recompute.table import STOPPED, row_of
from npucmp.recompute.task import ReplaySettings, Task

if TYPE_CHECKING:
    from npucmp.model import Edge
    from npucmp.recompute.data_flow import EdgeTask

NEEDS_TORCH = "only torch can replay it"


class OperatorEngine:
    """Replays one task at a time, in a child process. `library` is the only one to use, "" for any."""

    def __init__(self, library: str = "") -> None:
        self.library = library

    def missing(self) -> str:
        """Return what must be installed to replay every call, "" if nothing."""
        return "" if self.library == "numpy" or has_torch() else "npucmp[replay]"

    def refuses(self, task: Task) -> tuple[str, str]:
        """Return a status and its reason if the task cannot be replayed; ("", "") if it can. It reads tables only."""
        if task.is_of_graph:
            return _refused_operator(task) if self.library != "torch" else (
                "not in table", "torch replays recorded calls, not operators of graphs"
            )  # fmt: skip
        if task.call.prefix.rpartition(".")[2] in ("Module", "Cell"):
            return "container", "a module is not a single call, and its record has no hyper-parameters"
        if task.is_backward and (task.forward is None or task.forward_call is None):
            return "no data", "the forward that it reads was not dumped"
        row = row_of(task.called)
        if row is None:
            return "not in table", f"{task.call.prefix}.{task.call.name} is not a call that npucmp can replay"
        if row.kind in STOPPED:
            return STOPPED[row.kind]
        if not libraries_of(task, self.library):
            return "not in table", NEEDS_TORCH
        if not task.called.args and not task.called.kwargs:
            return "no data", "the inputs of this call were not dumped"
        return "", ""

    def start(self, settings: ReplaySettings) -> None:
        """Import modules in advance. Called once in each child."""
        from npucmp.recompute import replayed_rows  # noqa: F401

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
        """Return a row for each output of the task. An exception fails this task only. RefusedRecord (arguments.py) has
        the status."""
        from npucmp.recompute import replayed_rows

        return replayed_rows.replay_rows(task, context, settings._replace(library=self.library))

    def edge(self, task: EdgeTask, context: ReadContext, settings: ReplaySettings) -> Edge:
        """Check a gradient between operators."""
        from npucmp.recompute import gradient_edges

        return gradient_edges.edge(task, context, settings._replace(library=self.library))


def _refused_operator(task: Task) -> tuple[str, str]:
    """The same as OperatorEngine.refuses, for an operator of a graph."""
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


class CaseEngine(OperatorEngine):
    """Replays one call of a record, or its gradients, and writes its case (repro_case.py) into an existing empty
    folder. If no case was written, no row has the status `replayed`."""

    def __init__(self, folder: Path, library: str = "", smallest: bool = False) -> None:
        super().__init__(library)
        self._folder, self._smallest = folder, smallest

    def refuses(self, task: Task) -> tuple[str, str]:
        if task.is_of_graph:
            return "not in table", "a case can be written for a recorded call only, not for an operator of a graph"
        row = row_of(task.called)
        return STOPPED["random"] if row is not None and row.kind == "dropout" else super().refuses(task)

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
        rows = super().replay(task, context, settings)
        slots = [one.slot for one in rows if one.status == REPLAYED]
        if slots:
            from npucmp.recompute import case_files

            again = settings._replace(library=self.library)
            case_files.write(task, context, again, self._folder, slots, self._smallest)
        return rows


class RecordedCaseEngine(CaseEngine):
    """Writes the case of a task as it was recorded, without torch; its run.py computes the results."""

    def refuses(self, task: Task) -> tuple[str, str]:
        return "", ""

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
        from npucmp.recompute import case_files

        case_files.write_recorded(task, context, self._folder)
        words = "written as it was recorded: run.py computes it in float64, with torch"
        return [
            ReplayedOutput(task.operator.order, one.slot, "not in table", explanation=words) for one in task.outputs
        ]
