"""Load the values of one tensor of a dump as an array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from npucmp.dump.limits import Limits
from npucmp.errors import UsageError
from npucmp.measure.preview import array_of
from npucmp.model import Operator, TensorRef
from npucmp.workflows.graphs import loaded, with_graphs
from npucmp.workflows.select_runs import NEAR, RunSelection, StrPath, operator_of
from npucmp.workflows.selectors import Numbers

if TYPE_CHECKING:
    import numpy.typing as npt


def load(
    dump: StrPath,
    op: Optional[str] = None,
    slot: Optional[str] = None,
    *,
    step: Numbers = None,
    rank: Numbers = None,
    format: Optional[str] = None,
    limits: Limits = Limits(),
) -> npt.NDArray[Any]:
    """Return the values of a tensor in its logical shape: device layouts are undone, slices are joined, bfloat16 is the
    type of ml_dtypes.

    op      the operator, by its whole name; None for the only one
    slot    "output:0", "input:1", "param:weight"; None for the only tensor, or the only output
    step, rank, format, limits  as for compare

    Raises UsageError with the nearest names for an unknown name, and NpucmpError if no values were dumped.
    """
    choice = RunSelection(format=format, step=step, rank=rank, limits=limits)
    context = choice.context(dump)
    runs = [run for run in choice.runs(dump, context) if not run.problem]
    runs = with_graphs(dump, runs, dump, loaded((), runs, context), context)  # graphs name the axes of a layout
    if op is None:
        names = [operator.name for run in runs for operator in run.operators]
        if len(names) != 1:
            raise UsageError(f"{dump}: name one of {len(names)} operators", names[:NEAR])
        op = names[0]
    _, operator = operator_of(op, dump, runs)
    return array_of(_tensor(dump, operator, slot), context)


def _tensor(dump: StrPath, operator: Operator, slot: Optional[str]) -> TensorRef:
    outputs = [one for one in operator.tensors if one.is_output]
    if slot is not None:
        found = [one for one in operator.tensors if one.slot == slot]
    else:
        found = [*operator.tensors] if len(operator.tensors) == 1 else outputs
    if len(found) == 1:
        return found[0]
    words = f"has no {slot}" if slot is not None else "has several tensors: name a slot"
    raise UsageError(f"{dump}: {operator.name} {words}", [one.slot for one in operator.tensors])
