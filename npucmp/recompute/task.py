"""What is replayed, and who does it."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Mapping, NamedTuple, Optional, Protocol, Sequence

from npucmp.dump.context import ReadContext
from npucmp.model import Call, Operator, Replayed, Run, TensorRef
from npucmp.model.dtypes import size_of

GRAPH = "Graph."  # prefix of the calls of operators that a graph tells of; behind it the format of the dump


class Task(NamedTuple):
    """A record to be replayed; `forward` and `forward_call` are those of a backward record."""

    operator: Operator
    call: Call
    forward: Optional[Operator] = None
    forward_call: Optional[Call] = None

    @property
    def is_backward(self) -> bool:
        return self.operator.phase == "backward"

    @property
    def outputs(self) -> list[TensorRef]:
        return [tensor for tensor in self.operator.tensors if tensor.slot.startswith("output:")]

    @property
    def bytes(self) -> int:
        operators = [one for one in (self.operator, self.forward) if one is not None]
        return sum(size_of(one.dtype, one.shape) for operator in operators for one in operator.tensors)


class ReplaySettings(NamedTuple):
    """How a replay judges: limits are multiplied by `scale`; `known` gives the rms ratio that outputs of a kind have in
    a clean dump. `trials` are replays with noise, `memory` the bytes that one task may take."""

    scale: float = 1.0
    known: Mapping[tuple[str, str], float] = MappingProxyType({})
    trials: int = 3
    memory: int = 8 << 30
    seed: int = 0


class Engine(Protocol):
    """Who replays. One task at a time, in a child process; nothing that it imports is imported by the parent."""

    name: str

    def refuses(self, task: Task) -> tuple[str, str]:
        """A status and its reason, where the task is not for it; ("", "") for one that it replays. Asked in the parent:
        by tables alone."""

    def start(self, settings: ReplaySettings) -> None:
        """Called once in each child: imports, limits."""

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[Replayed]:
        """A row for each output of the task. What it raises costs this task alone: Refused (arguments.py) has the
        status with it."""

    def missing(self) -> str:
        """What has to be installed first, "" if nothing."""


def kind_of(operator: Operator, prefix: str = "") -> str:
    """Whose peers an operator is among: calls of one function; kernels of a graph, whose names differ, of one type."""
    return operator.op_type if prefix.startswith(GRAPH) else operator.kind


def tasks_of(run: Run, calls: Mapping[str, Call]) -> list[Task]:
    """Every operator with a call, in order of execution; a backward one with the forward of its call."""
    forwards = {one.call: one for one in run.operators if one.phase == "forward" and one.name in calls}
    found = []
    for operator in run.operators:
        call = calls.get(operator.name)
        if call is not None:
            forward = forwards.get(operator.call) if operator.phase == "backward" else None
            found.append(Task(operator, call, forward, calls[forward.name] if forward is not None else None))
    return found


def unknown(task: Task, status: str, because: str, **more: Any) -> list[Replayed]:
    """Rows of a task that cannot be replayed."""
    return [Replayed(task.operator.order, one.slot, status, explanation=because, **more) for one in task.outputs]


def first_line(error: Exception) -> str:
    """Of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def first_engine(task: Task, engines: Sequence[Engine]) -> tuple[Optional[Engine], tuple[str, str]]:
    """The engine that takes a task; else the first reason why none does."""
    reasons = []
    for engine in engines:
        status, because = engine.refuses(task)
        if not status:
            return engine, ("", "")
        reasons.append((status, because))
    told = reasons[::-1] if task.call.prefix.startswith(GRAPH) else reasons  # torch knows records, numpy graphs
    return None, next((one for one in told if one[0] != "not in table"), told[0])
