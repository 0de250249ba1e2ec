"""One record → the files of its case, computed by numpy, or as it was recorded. Only child processes import this."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Collection, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.model import TensorRef
from npucmp.model.optypes import op_type_of
from npucmp.recompute.arguments import Arguments, RefusedRecord, arguments_of, read, slots_of
from npucmp.recompute.bound_call import BackwardPlan
from npucmp.recompute.computation import Computation, compute_operator
from npucmp.recompute.fewest_rows import fewest_rows
from npucmp.recompute.repro_case import CaseTensor, Type, as_npy, files, unit_of
from npucmp.recompute.table import row_of
from npucmp.recompute.task import ReplaySettings, Task

RUNNING = {"batch_norm": ("input:1", "input:2"), "instance_norm": ("input:1", "input:2")}  # statistics, no gradient


def write(
    task: Task,
    context: ReadContext,
    settings: ReplaySettings,
    folder: Path,
    slots: Collection[str],
    smallest: bool = False,
) -> None:
    """Write the files of a call, or of its gradients, into an existing empty folder; repro_case.py lists them.

    slots     the outputs that were recomputed
    smallest  only the fewest rows that show the fault, if the call has independent rows
    Raises RefusedRecord for a call that cannot be computed, and the errors of the readers.
    """
    found = fewest_rows(task, context, settings) if smallest else None
    task, *cut = found if found is not None else (task,)
    work, exact = compute_operator(task, context, settings)
    files_of = _CaseFiles(work.treated, context)
    leaves = len(_gradients(work)) if task.is_backward else 0
    for at, tensor in work.recorded.items():
        if tensor.slot not in slots or at >= len(exact) or exact[at] is None or not exact[at].size:
            continue
        files_of.add_output(tensor, work.values[at], *_place(work, at, leaves), exact[at].reshape(tensor.shape))
    _write_files(task, folder, files_of, leaves, cut or None)


def write_recorded(task: Task, context: ReadContext, folder: Path) -> None:
    """Write the files of a call that only torch can compute, without results in float64: run.py computes them.

    Raises RefusedRecord if no output has values, and the errors of the readers.
    """
    files_of = _CaseFiles("", context)
    for tensor in task.outputs:
        values = read(tensor, context)
        if values.size:
            files_of.add_output(tensor, values, 0, False, None)
    _write_files(task, folder, files_of, None)


def _write_files(
    task: Task, folder: Path, files_of: _CaseFiles, most: Optional[int], cut: Optional[list[Any]] = None
) -> None:
    """Write the files of a call whose outputs are added; `most` is the number of inputs that have a gradient, `cut` the
    rows of the case and the number of all rows."""
    operator, call = task.forward if task.is_backward else task.operator, task.called
    row = row_of(call)
    assert operator is not None and row is not None
    if not files_of.outputs:
        raise RefusedRecord("no recomputed output has recorded values to compare")
    for one in operator.tensors:
        if one.slot.startswith("input"):
            files_of.add(f"input_{len(files_of.names)}", one)
    places: dict[str, list[Any]] = {"given": [], "saved": []}
    name, leaves = row.call.rpartition(".")[2], []
    if task.is_backward:
        leaves = files_of.floats(RUNNING.get(name, ()))[:most]
        by_slot = {one.slot: one for one in task.operator.tensors}
        inputs = [by_slot.get(f"input:{at}") for at in range(len(task.call.args))]
        places["given"] = files_of.add_all("given", inputs)
        if not op_type_of(operator).has("views", "hands on"):  # views return the arguments themselves, not copies
            results = {one.slot: one for one in operator.tensors}
            places["saved"] = files_of.add_all("saved", [results.get(slot or "") for slot in slots_of(call)])
    for file, array in files_of.arrays.items():
        np.save(folder / f"{file}.npy", array, allow_pickle=False)
    args, kwargs = arguments_of(call, row, lambda slot: CaseTensor(files_of.names[slot]), Type)
    if name == "embedding":
        args[3:4] = [None] * len(args[3:4])  # max_norm would write into the weight
    facts = {"operator": task.operator.name, "call": f"{call.prefix}.{call.name}", "treated": files_of.treated,
             "rows": cut, "outputs": files_of.outputs, "tensors": files_of.types, "leaves": leaves,
             **places}  # fmt: skip
    for file, text in files(row, Arguments(args, kwargs), task.is_backward, facts).items():
        (folder / file).write_text(text, encoding="utf-8")


class _CaseFiles:
    """The tensors of a case by file name, and the file name of each input by its slot."""

    def __init__(self, treated: str, context: ReadContext) -> None:
        self.treated, self._low, self._context = treated, treated.rpartition(" ")[2], context
        self.names: dict[str, str] = {}
        self.arrays: dict[str, Any] = {}
        self.types: dict[str, str] = {}
        self.outputs: list[dict[str, Any]] = []

    def add_output(self, tensor: TensorRef, values: Any, place: int, is_turned: bool, exact: Any) -> None:
        """Add a dumped output, and its float64 result unless run.py has to compute it."""
        number = len(self.outputs)
        actual, expected = f"actual_{number}", f"expected_{number}" if exact is not None else ""
        if exact is not None:
            self.arrays[expected] = exact
        self.arrays[actual] = as_npy(values.reshape(tensor.shape), tensor.dtype)
        self.outputs.append({"slot": tensor.slot, "dtype": tensor.dtype, "at": place, "turned": is_turned,
                             "unit": unit_of(tensor.dtype), "expected": expected, "actual": actual})  # fmt: skip

    def add(self, name: str, one: TensorRef) -> None:
        """Add an input in the type that the kernel received."""
        self.names[one.slot] = name
        self._put(name, one, self._low if self._low and unit_of(one.dtype) else one.dtype)

    def floats(self, but: Collection[str]) -> list[str]:
        """The names of inputs that may have a gradient, except for the slots in `but`."""
        return [name for slot, name in self.names.items() if unit_of(self.types[name]) and slot not in but]

    def add_all(self, kind: str, tensors: list[Optional[TensorRef]]) -> list[list[Any]]:
        """Add incoming gradients or results; return the place and the name of each that was recorded."""
        found: list[list[Any]] = []
        for at, one in enumerate(tensors):
            if one is not None and (one.file or one.payload is not None) and not one.problem:
                self._put(f"{kind}_{at}", one, one.dtype)
                found.append([at, f"{kind}_{at}"])
        return found

    def _put(self, name: str, one: TensorRef, dtype: str) -> None:
        self.arrays[name], self.types[name] = as_npy(read(one, self._context), dtype), dtype


def _gradients(work: Computation) -> list[Any]:
    """The gradients of the call's inputs, in order, if the call is a single node."""
    return [one for one in work.nodes()[0] if one is not None]


def _place(work: Computation, at: int, leaves: int) -> tuple[int, bool]:
    """The place where run.py finds a result, and whether it is transposed there. Gradients of inputs are counted from
    the end; all others are outputs of the last autograd node."""
    if not isinstance(work.plan, BackwardPlan):
        return at, False
    chosen = work.plan.chosen[at]
    assert chosen is not None
    one: Any = chosen._replace(is_turned=False).of(work.nodes())
    same = (place for place, own in enumerate(_gradients(work)) if np.array_equal(own, one))
    place = next(same, None)
    return (chosen.place if place is None else place - leaves), chosen.is_turned
