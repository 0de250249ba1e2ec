"""Tasks of a replay."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Mapping, NamedTuple, Optional

from npucmp.model import Call, Operator, ReplayedOutput, Run, TensorRef
from npucmp.model.checkpointing import forwards_run_again
from npucmp.model.dtypes import size_of

GRAPH = "Graph."  # prefix of calls from a graph, followed by the format of the dump


class Task(NamedTuple):
    """A record to replay. `forward` and `forward_call` belong to a backward record."""

    operator: Operator
    call: Call
    forward: Optional[Operator] = None
    forward_call: Optional[Call] = None

    @property
    def is_backward(self) -> bool:
        return self.operator.phase == "backward"

    @property
    def is_of_graph(self) -> bool:
        """Whether the operator is one of a graph, not a recorded call."""
        return self.call.prefix.startswith(GRAPH)

    @property
    def called(self) -> Call:
        """The call, of a backward record that of its forward."""
        return self.forward_call if self.is_backward and self.forward_call is not None else self.call

    @property
    def outputs(self) -> list[TensorRef]:
        return [tensor for tensor in self.operator.tensors if tensor.slot.startswith("output:")]

    @property
    def bytes(self) -> int:
        operators = [one for one in (self.operator, self.forward) if one is not None]
        return sum(size_of(one.dtype, one.shape) for operator in operators for one in operator.tensors)


class ReplaySettings(NamedTuple):
    """Settings of a replay. `scale` multiplies the limits; `known` gives the rms ratio of outputs of a kind in a clean
    dump. `trials` is the number of replays with noise, `memory` the bytes that one task may use, `library` the only one
    to compute with ("numpy" or "torch", "" for any). `explains`: hypotheses are tried for guilty outputs."""

    scale: float = 1.0
    known: Mapping[tuple[str, str], float] = MappingProxyType({})
    trials: int = 3
    memory: int = 8 << 30
    seed: int = 0
    library: str = ""
    explains: bool = True


def kind_of(operator: Operator, prefix: str = "") -> str:
    """Return the group of peers of an operator: calls of one function; kernels of one type in a graph, where names
    differ."""
    return operator.op_type if prefix.startswith(GRAPH) else operator.kind


def tasks_of(run: Run, calls: Mapping[str, Call]) -> list[Task]:
    """Return a task for every operator with a call, in order of execution. A backward operator has the forward of its
    call, or the one that ran again (checkpointing)."""
    forwards = {one.call: one for one in run.operators if one.phase == "forward" and one.name in calls}
    again = forwards_run_again([one for one in run.operators if one.name in calls])
    found = []
    for operator in run.operators:
        call = calls.get(operator.name)
        if call is not None:
            first = forwards.get(operator.call) if operator.phase == "backward" else None
            forward = again.recorded.get(operator.order, None if operator.order in again.unrecorded else first)
            found.append(Task(operator, call, forward, calls[forward.name] if forward is not None else None))
    return found


def unknown(task: Task, status: str, because: str, **more: Any) -> list[ReplayedOutput]:
    """Return rows of a task that cannot be replayed."""
    return [ReplayedOutput(task.operator.order, one.slot, status, explanation=because, **more) for one in task.outputs]


def first_line(error: Exception) -> str:
    """Return the first line of an error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
