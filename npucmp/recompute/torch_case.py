"""One record → the files of its case, whole or reduced to the fewest rows that show its fault. Only child processes
import this."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import torch

from npucmp.dump.limits import ReadContext
from npucmp.model import ReplayVerdict, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.recompute.arguments import Arguments, RefusedRecord, arguments_of, read, slots_of
from npucmp.recompute.error_budget import BudgetTally
from npucmp.recompute.numpy_calls import GRADIENT_DISTANCE
from npucmp.recompute.repro_case import CaseTensor, Type, as_npy, files, unit_of
from npucmp.recompute.table import CallRow
from npucmp.recompute.task import ReplaySettings, Task
from npucmp.recompute.torch_backward import (
    BackwardBlocks,
    cut_of_backward,
    distance,
    due_of_backward,
    gradients,
    incoming_gradients,
    nearest,
    number_of,
    saved_by,
)
from npucmp.recompute.torch_bind_call import CLONED, Bound, bind, mapped_any
from npucmp.recompute.torch_blocks import BLOCK, Blocks, DueOf, cut_of
from npucmp.recompute.torch_forward import due_of
from npucmp.recompute.torch_results import MORE, numpy_of


class CaseOutput(NamedTuple):
    """A dumped tensor, and its values in float64. `at` is its place among the results or the gradients of the call,
    counted from the end if negative; `turned`: it was dumped transposed."""

    tensor: TensorRef
    at: int
    turned: bool
    exact: Any
    actual: Any


class ComputedCall(NamedTuple):
    """A computed call. `incoming` are the incoming gradients of its results, `saved` its recorded results; None if
    missing. `rows` are the rows to which it was reduced, and the number of all rows."""

    bound: Bound
    incoming: list[Any]
    saved: list[Any]
    outputs: list[CaseOutput]
    rows: Optional[tuple[list[int], int]] = None


def write(
    task: Task, row: CallRow, context: ReadContext, settings: ReplaySettings, folder: Path, smallest: bool
) -> None:
    made = _cut(task, row, context, settings) if smallest else None
    made = made or (_backward if task.is_backward else _forward)(task, row, context, settings)
    if not made.outputs:
        raise RefusedRecord("no recomputed output has recorded values to compare")
    operator, call = (task.forward, task.forward_call) if task.is_backward else (task.operator, task.call)
    assert operator is not None and call is not None
    names = {slot: f"input_{number}" for number, slot in enumerate(made.bound.dtypes)}
    arrays: dict[str, Any] = {}
    types: dict[str, str] = {}
    leaves = [names[slot] for slot in _leaves(made.bound)] if task.is_backward else []
    for slot, one in zip(made.bound.dtypes, _tensors(made.bound)):
        dtype = _type_of(slot, made.bound) if one.is_floating_point() else made.bound.dtypes[slot]
        arrays[names[slot]], types[names[slot]] = as_npy(one.detach().numpy(), dtype), dtype
    places: dict[str, list[Any]] = {"given": [], "saved": []}
    inputs: list[Optional[str]] = [f"input:{at}" for at in range(len(made.incoming))]
    for kind, tensors, of, slots in (
        ("given", made.incoming, task.operator, inputs),
        ("saved", _recorded_results(made), operator, made.bound.slots),
    ):
        known = {one.slot: one.dtype for one in of.tensors}
        for at, (place, one) in enumerate(zip(slots, tensors)):
            if one is not None:
                name, dtype = f"{kind}_{at}", known[place or ""]
                arrays[name], types[name] = as_npy(numpy_of(one).reshape(one.shape), dtype), dtype
                places[kind].append([at, name])
    outputs = []
    for number, output in enumerate(made.outputs):
        expected, actual = f"expected_{number}", f"actual_{number}"
        arrays[expected] = numpy_of(output.exact).reshape(output.exact.shape)
        arrays[actual] = as_npy(output.actual.reshape(output.exact.shape), output.tensor.dtype)
        outputs.append({"slot": output.tensor.slot, "dtype": output.tensor.dtype, "at": output.at,
                        "turned": output.turned, "unit": unit_of(output.tensor.dtype), "expected": expected,
                        "actual": actual})  # fmt: skip
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    args, kwargs = arguments_of(call, row, lambda slot: CaseTensor(names[slot]), Type)
    if row.call.rpartition(".")[2] == "embedding":
        args[3:4] = [None] * len(args[3:4])  # as torch_bind_call.called does
    facts = {"operator": task.operator.name, "treated": made.bound.treated, "rows": made.rows, "outputs": outputs,
             "tensors": types, "leaves": leaves, **places}  # fmt: skip
    for name, text in files(row, Arguments(args, kwargs), task.is_backward, facts).items():
        (folder / name).write_text(text, encoding="utf-8")


def _forward(task: Task, row: CallRow, context: ReadContext, settings: ReplaySettings) -> ComputedCall:
    bound = bind(task.operator, task.call, row, context, settings.memory)
    tensors = {one.slot: one for one in task.outputs}
    with torch.no_grad():
        exact = bound.call()
    outputs = [
        CaseOutput(tensors[slot], at, False, one, read(tensors[slot], context))
        for at, (slot, one) in enumerate(zip(bound.slots, exact))
        if slot in tensors and isinstance(one, torch.Tensor) and one.numel()
    ]
    return ComputedCall(bound, [], [], outputs)


def _backward(task: Task, row: CallRow, context: ReadContext, settings: ReplaySettings) -> ComputedCall:
    assert task.forward is not None and task.forward_call is not None
    bound = bind(task.forward, task.forward_call, row, context, settings.memory)
    incoming, saved = incoming_gradients(task, context), saved_by(task, bound, context)
    candidates = gradients(bound, incoming, saved)
    outputs = []
    for place, tensor in enumerate(task.outputs):
        recorded = read(tensor, context)
        at, form = nearest(recorded, candidates, number_of(tensor.slot, place))
        if at < 0 or not recorded.size or distance(recorded, form(candidates[at])) > GRADIENT_DISTANCE:
            continue
        one, exact = candidates[at], form(candidates[at])
        turned = one.dim() >= 2 and one.shape != exact.shape and torch.equal(one.mT.reshape(exact.shape), exact)
        outputs.append(CaseOutput(tensor, _from_end(at, candidates, bound, tensor.dtype), turned, exact, recorded))
    return ComputedCall(bound, incoming, saved, outputs)


def _from_end(at: int, candidates: list[Any], bound: Bound, dtype: str) -> int:
    """The place of a candidate. If it equals the gradient of an input of the recorded type, this place is used: on a
    device the last autograd node, and its number of gradients, may differ."""
    types = [_type_of(slot, bound) for slot in _leaves(bound)]
    first = len(candidates) - len(types)
    alike = (place for place, own in enumerate(types, first) if own == dtype)
    place = next((place for place in alike if _equal(candidates[place], candidates[at])), at)
    return place - len(candidates) if place >= first else place


def _leaves(bound: Bound) -> list[str]:
    """Inputs with a gradient: floats, except for running statistics."""
    fixed = {id(one) for one in bound.args[1:3]} if bound.row.call.rpartition(".")[2] in CLONED else set()
    tensors = zip(bound.dtypes, _tensors(bound))
    return [slot for slot, one in tensors if one.is_floating_point() and id(one) not in fixed]


def _type_of(slot: str, bound: Bound) -> str:
    """The type of a float input that the kernel received."""
    return bound.low if bound.treated else bound.dtypes[slot]


def _equal(a: Any, b: Any) -> bool:
    return a is b or (a is not None and a.shape == b.shape and torch.equal(a, b))


def _cut(task: Task, row: CallRow, context: ReadContext, settings: ReplaySettings) -> Optional[ComputedCall]:
    """The call for the fewest rows that are GUILTY by themselves, in order of decreasing error; None if its rows depend
    on each other, or if only all rows together are GUILTY."""
    found = _blocks(task, row, context, settings)
    if found is None:
        return None
    blocks, due = found
    cut = blocks.cut
    order = np.argsort(-_away(blocks), kind="stable")

    def is_guilty(count: int) -> bool:
        return _any_guilty(blocks, due, _ranges(order[:count]), settings)

    most = 1
    while most < cut.rows and not is_guilty(most):
        most *= 2
    if most >= cut.rows:
        return None
    least = most // 2  # too few
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if is_guilty(middle) else (middle, most)
    ranges = _ranges(order[:most])
    state, exact = blocks.called(ranges)
    places = state.chosen if task.is_backward else _places(blocks, task)
    outputs = [
        CaseOutput(stream.tensor, at, False, one, stream.take(ranges))
        for stream, at, one in zip(blocks.outputs.values(), places, exact)
    ]
    if task.is_backward:
        every = gradients(state.bound, state.incoming, state.saved)
        outputs = [one._replace(at=_from_end(one.at, every, state.bound, one.tensor.dtype)) for one in outputs]
    return ComputedCall(state.bound, state.incoming, state.saved, outputs, ([start for start, _ in ranges], cut.rows))


def _blocks(task: Task, row: CallRow, context: ReadContext, settings: ReplaySettings) -> Optional[tuple[Blocks, DueOf]]:
    """The call block by block, and its noise; None if its rows depend on each other."""
    if task.is_backward:
        cut = cut_of_backward(task, row, 1)
        return None if cut is None else (BackwardBlocks(task, row, cut, context, settings), due_of_backward)
    cut = cut_of(task.operator, task.call, row, 1)
    return None if cut is None else (Blocks(task, row, cut, context, settings), _due_of_forward)


def _due_of_forward(state: Any, exact: list[Any], settings: ReplaySettings) -> tuple[list[Any], str]:
    return due_of(state.bound, exact, settings)


def _places(blocks: Blocks, task: Task) -> list[int]:
    slots = slots_of(task.call)
    return [slots.index(slot) for slot in blocks.outputs]


def _away(blocks: Blocks) -> Any:
    """The error of each row relative to its rms: the maximum over outputs."""
    found = np.zeros(blocks.cut.rows)
    step = max(1, BLOCK // blocks.width)
    for start in range(0, blocks.cut.rows, step):
        stop = min(start + step, blocks.cut.rows)
        _, exact = blocks.called([(start, stop)])
        for stream, one in zip(blocks.outputs.values(), exact):
            if one is None:
                raise RefusedRecord("a recorded output is not a gradient of this call")
            actual, wide = stream.take([(start, stop)]).astype(np.float64), numpy_of(one).astype(np.float64)
            actual, wide = actual.reshape(stop - start, -1), wide.reshape(stop - start, -1)
            with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
                error = np.abs(actual - wide)
                error[(actual == wide) | ((actual != actual) & (wide != wide))] = 0.0
                size = np.sqrt(np.mean(wide**2, axis=1))
                rows = np.sqrt(np.mean(error**2, axis=1)) / np.where(size > 0, size, 1.0)
            found[start:stop] = np.maximum(found[start:stop], np.nan_to_num(rows, nan=np.inf, posinf=np.inf))
    return found


def _any_guilty(blocks: Blocks, due: DueOf, ranges: list[tuple[int, int]], settings: ReplaySettings) -> bool:
    state, exact = blocks.called(ranges)
    sigmas, made_of = due(state, exact, settings._replace(trials=settings.trials * MORE))
    for stream, one, sigma in zip(blocks.outputs.values(), exact, sigmas):
        dtype = lookup(stream.tensor.dtype)
        assert dtype is not None
        tally = BudgetTally(dtype, made_of, state.bound.is_rounded_once)
        actual = stream.take(ranges)
        tally.add((actual.astype(np.float64) if dtype.kind == "f" else actual).reshape(-1), numpy_of(one), sigma)
        if tally.row(0, stream.tensor.slot, settings.scale).verdict is ReplayVerdict.GUILTY:
            return True
    return False


def _ranges(rows: Any) -> list[tuple[int, int]]:
    return [(int(row), int(row) + 1) for row in np.sort(rows)]


def _tensors(bound: Bound) -> list[Any]:
    """The tensors of a call, in the order of their slots."""
    found: list[Any] = []
    mapped_any([[*bound.args], bound.kwargs], found.append)
    return found


def _recorded_results(made: ComputedCall) -> list[Any]:
    """Recorded results that are not views of arguments: the script must copy them over its own results."""
    if not any(one is not None for one in made.saved):
        return []
    with torch.no_grad():
        results = made.bound.call()
    places = {one.untyped_storage().data_ptr() for one in _tensors(made.bound)}
    return [
        stored if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in places else None
        for result, stored in zip(results, made.saved)
    ]
