"""The engine that torch on the CPU is: forward by the recorded call, backward by autograd. torch is imported by start,
in a child process, and nowhere else."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

from npucmp.dump.context import ReadContext
from npucmp.model import Edge, Replayed
from npucmp.replay.links import EdgeTask
from npucmp.replay.table import Row, row_of
from npucmp.replay.task import Settings, Task

STOPPED = {  # kinds of the table that are not replayed
    "random": ("random", "it draws random numbers"),
    "ranks": ("not in table", "it needs the tensors of other ranks"),
}


class TorchEngine:
    """See task.Engine."""

    name = "torch"

    def missing(self) -> str:
        return "" if find_spec("torch") is not None else "npucmp[replay]"

    def refuses(self, task: Task) -> "tuple[str, str]":
        call = task.forward_call if task.is_backward else task.call
        if task.call.prefix.rpartition(".")[2] in ("Module", "Cell"):
            return "container", "a module is no single call, and its record has no hyper-parameters"
        if call is None or (task.is_backward and task.forward is None):
            return "no data", "the forward of this call was not dumped"
        if not call.args and not call.kwargs:
            return "no data", "what it read was not dumped"
        row = row_of(call)
        if row is None:
            return "not in table", f"{call.prefix}.{call.name} is no call that can be replayed"
        return STOPPED.get(row.kind, ("", ""))

    def start(self, settings: Settings) -> None:
        import torch

        warnings.simplefilter("ignore")  # of calls as others made them
        torch.set_num_threads(1)
        torch.set_flush_denormal(False)
        from npucmp.replay import torch_backward, torch_edges, torch_forward  # noqa: F401 the rest, while nobody waits

    def replay(self, task: Task, context: ReadContext, settings: Settings) -> "list[Replayed]":
        from npucmp.replay import torch_backward, torch_forward

        row = row_of(task.forward_call if task.is_backward and task.forward_call else task.call)
        assert isinstance(row, Row)
        work = torch_backward.backward if task.is_backward else torch_forward.forward
        found: list[Replayed] = work(task, row, context, settings)
        return found

    def edge(self, task: EdgeTask, context: ReadContext, settings: Settings) -> Edge:
        """What a gradient between operators is."""
        from npucmp.replay import torch_edges

        return torch_edges.edge(task, context, settings)
