"""The torch engine on the CPU: forward by the recorded call, backward by autograd. Only start imports torch, in a child
process."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

from npucmp.dump.limits import ReadContext
from npucmp.model import REPLAYED, Call, Edge, ReplayedOutput
from npucmp.recompute.data_flow import EdgeTask
from npucmp.recompute.table import STOPPED, CallRow, row_of
from npucmp.recompute.task import GRAPH, ReplaySettings, Task


class TorchEngine:
    """See task.Engine."""

    name = "torch"

    def missing(self) -> str:
        return "" if find_spec("torch") is not None else "npucmp[replay]"

    def refuses(self, task: Task) -> tuple[str, str]:
        call = task.forward_call if task.is_backward else task.call
        if task.call.prefix.startswith(GRAPH):
            return "not in table", "torch replays recorded calls, not operators of graphs"
        if task.call.prefix.rpartition(".")[2] in ("Module", "Cell"):
            return "container", "a module is not a single call, and its record has no hyper-parameters"
        if call is None or (task.is_backward and task.forward is None):
            return "no data", "the forward that it reads was not dumped"
        if not call.args and not call.kwargs:
            return "no data", "the inputs of this call were not dumped"
        row = row_of(call)
        if row is None:
            return "not in table", f"{call.prefix}.{call.name} is not a call that npucmp can replay"
        return STOPPED.get(row.kind, ("", ""))

    def start(self, settings: ReplaySettings) -> None:
        import torch

        warnings.simplefilter("ignore")  # of recorded calls
        torch.set_num_threads(1)
        torch.set_flush_denormal(False)
        from npucmp.recompute import torch_backward, torch_edges, torch_forward  # noqa: F401 import in advance

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
        from npucmp.recompute import torch_backward, torch_forward

        row = row_of(_forward_call(task))
        assert isinstance(row, CallRow)
        work = torch_backward.backward if task.is_backward else torch_forward.forward
        found: list[ReplayedOutput] = work(task, row, context, settings)
        return found

    def edge(self, task: EdgeTask, context: ReadContext, settings: ReplaySettings) -> Edge:
        """Check a gradient between operators."""
        from npucmp.recompute import torch_edges

        return torch_edges.edge(task, context, settings)


class CaseEngine(TorchEngine):
    """Replays one task, and writes its case (repro_case.py) into an existing empty folder. If no case was written, no
    row has the status `replayed`."""

    def __init__(self, folder: Path, smallest: bool = False) -> None:
        self._folder, self._smallest = folder, smallest

    def refuses(self, task: Task) -> tuple[str, str]:
        status, because = super().refuses(task)
        row = row_of(_forward_call(task))
        is_random = not status and row is not None and row.kind == "dropout"
        return STOPPED["random"] if is_random else (status, because)

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
        rows = super().replay(task, context, settings)
        row = row_of(_forward_call(task))
        if row is not None and any(one.status == REPLAYED for one in rows):
            from npucmp.recompute import torch_case

            torch_case.write(task, row, context, settings, self._folder, self._smallest)
        return rows


class RecordedCaseEngine(CaseEngine):
    """Writes the case of a task as it was recorded, without torch; its run.py computes the results."""

    name = "recorded"

    def missing(self) -> str:
        return ""

    def start(self, settings: ReplaySettings) -> None:
        pass

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
        from npucmp.recompute import numpy_case

        row = row_of(_forward_call(task))
        assert isinstance(row, CallRow)
        numpy_case.write_recorded(task, row, context, self._folder)
        words = "written as it was recorded: run.py computes it in float64, with torch"
        return [
            ReplayedOutput(task.operator.order, one.slot, "not in table", explanation=words) for one in task.outputs
        ]


def _forward_call(task: Task) -> Call:
    """The call of the forward."""
    return task.forward_call if task.is_backward and task.forward_call else task.call
