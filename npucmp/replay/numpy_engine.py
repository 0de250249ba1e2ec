"""The engine that numpy is: operators of graphs (GE, TensorFlow, MindSpore), simple calls where torch is missing."""

from __future__ import annotations

from importlib.util import find_spec

from npucmp.dump.context import ReadContext
from npucmp.model import Replayed
from npucmp.model.optypes import op_type
from npucmp.replay.arguments import NotInTable
from npucmp.replay.task import GRAPH, Settings, Task


class NumpyEngine:
    """See task.Engine."""

    name = "numpy"

    def missing(self) -> str:
        return ""

    def refuses(self, task: Task) -> "tuple[str, str]":
        from npucmp.replay.numpy_calls import line_of_call
        from npucmp.replay.numpy_plan import plan_of

        if not task.call.prefix.startswith(GRAPH):
            if line_of_call(task.call) is not None and not task.is_backward:
                return "", ""
            what = "is no call" if not task.is_backward else "has a gradient, which is nothing"
            needed = "" if find_spec("torch") is not None else "; torch may: pip install npucmp[replay]"
            return "not in table", f"{task.call.prefix}.{task.call.name} {what} that numpy can replay{needed}"
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

    def start(self, settings: Settings) -> None:
        from npucmp.replay import numpy_rows  # noqa: F401 what takes time, before anybody waits

    def replay(self, task: Task, context: ReadContext, settings: Settings) -> "list[Replayed]":
        from npucmp.replay import numpy_rows

        return numpy_rows.replayed(task, context, settings)
