"""An operator → its results in float64, and their rounding noise. Only child processes import this."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.model import TensorRef
from npucmp.model.dtypes import ROUNDING, Dtype, lookup, unit_of
from npucmp.recompute.arguments import (
    CALL_ERRORS,
    CallTooLarge,
    MissingTensor,
    NotInTable,
    RefusedRecord,
    read,
    slots_of,
)
from npucmp.recompute.bound_call import (
    GRADIENT_DISTANCE,
    BackwardPlan,
    CallPlan,
    bound_call,
    chosen_gradients,
    plan_of_call,
)
from npucmp.recompute.call_inputs import CallInputs, arrays_in
from npucmp.recompute.library import formula_by, libraries_of
from npucmp.recompute.noisy_ops import Alternatives, Steps, sigma_of
from npucmp.recompute.table import COMPOSITE, PRODUCTS, row_of
from npucmp.recompute.task import GRAPH, ReplaySettings, Task

if TYPE_CHECKING:
    from npucmp.recompute.numpy_inputs import OperatorInputs
    from npucmp.recompute.numpy_table import Plan


OF_TORCH = ("Functional", "Torch", "Tensor")  # prefixes of calls whose autograd nodes are torch's own
NEAR_COMPOSITE = 0.02  # relative distance of a call whose decomposition depends on the version
MORE = 8  # times the trials, before an operator is GUILTY by measured noise


class Computation(NamedTuple):
    """An operator that can be computed. `recorded` are its results by place, `versions` the places of results whose
    nearest version was selected among several."""

    plan: Plan | CallPlan | BackwardPlan
    inputs: OperatorInputs | CallInputs
    recorded: Mapping[int, TensorRef]
    values: Mapping[int, Array]
    unit: float
    accumulator: float
    memory: int
    treated: str = ""
    others: tuple[CallInputs, ...] = ()
    versions: frozenset[int] = frozenset()
    library: str = "numpy"

    def results(
        self, inputs: OperatorInputs | CallInputs, seed: int | None = None, narrow: Optional[Dtype] = None
    ) -> list[Any]:
        """Return the results; with a seed they have noise, with `narrow` each step is rounded to that type."""
        steps = Steps(self.unit, self.accumulator, self.memory, seed, narrow)
        try:
            with np.errstate(all="ignore"):
                return self.plan.results(steps, inputs)  # type: ignore[arg-type]  # a plan has inputs of its own kind
        except (RefusedRecord, MemoryError):
            raise
        except CALL_ERRORS as error:  # raised for unexpected shapes or types
            raise RefusedRecord(f"the formula does not fit the record: {error}"[:160]) from None

    def nodes(self, seed: Optional[int] = None) -> list[Any]:
        """The autograd nodes whose gradients a backward record may hold; the first has those of all tensors."""
        assert isinstance(self.plan, BackwardPlan)
        chosen: list[Any] = self._replace(plan=_Nodes(self.plan)).results(self.inputs, seed)  # type: ignore[arg-type]
        return chosen

    def is_sure(self, at: int) -> bool:
        """Whether a recorded result can be no other than the computed one: of a gradient, no other autograd node's."""
        chosen = self.plan.chosen.get(at) if isinstance(self.plan, BackwardPlan) else None
        return chosen is None or chosen.is_sure


class _Nodes(NamedTuple):
    """A plan that returns all nodes of a backward formula."""

    plan: BackwardPlan

    def results(self, m: Steps, g: CallInputs) -> list[Any]:
        return [*self.plan.nodes(m, g)]


def compute_operator(
    task: Task, context: ReadContext, settings: ReplaySettings, like: Optional[Computation] = None
) -> tuple[Computation, list[Any]]:
    """Return an operator and its results in float64. If numpy refuses a call, torch computes it. `like` is the same
    record with other values or rows, whose choice of gradients is taken. Raises RefusedRecord, and the errors of the
    readers."""
    if task.is_of_graph:
        return _results_of(_work_of_operator(task, context, settings))
    refusal = None
    for library in libraries_of(task, settings.library):
        try:
            work = _work_of_call(task, context, settings, library)._replace(library=library)
            return _results_of(work) if not task.is_backward else _gradients_of(task, work, like)
        except (MissingTensor, OverwrittenInput):
            raise
        except RefusedRecord as error:
            refusal = refusal or error
    raise refusal or NotInTable("no library computes it")


def _results_of(work: Computation) -> tuple[Computation, list[Any]]:
    results = work.results(work.inputs)
    several = frozenset(at for at, one in enumerate(results) if isinstance(one, Alternatives) and len(one.among) > 1)
    return work._replace(versions=several), nearest_versions(work, results)


def _gradients_of(task: Task, work: Computation, like: Optional[Computation]) -> tuple[Computation, list[Any]]:
    """Return the gradients that a record holds: those that `like` chose, or those that fit."""
    nodes = work.nodes()
    plan = _chosen_plan(task, work, nodes) if like is None else like.plan
    assert isinstance(plan, BackwardPlan)
    return work._replace(plan=plan), [None if one is None else np.asarray(one) for one in plan.of(nodes)]


def _work_of_operator(task: Task, context: ReadContext, settings: ReplaySettings) -> Computation:
    """Return an operator of a graph with its values."""
    operator = task.operator
    if 8 * sum(math.prod(one.shape) for one in operator.tensors) > settings.memory:
        raise CallTooLarge("its tensors alone exceed --limit-memory")
    loaded = {one.slot: one for one in operator.tensors}
    outputs = {
        _slot_number(slot): one
        for slot, one in loaded.items()
        if slot.startswith("output:") and _slot_number(slot) >= 0
    }
    unit = max((unit_of(one.dtype) for one in outputs.values()), default=0.0)
    shapes = tuple(outputs[at].shape for at in range(len(outputs)) if at in outputs)
    inputs = {
        _slot_number(slot): one for slot, one in loaded.items() if slot.startswith("input:") and _slot_number(slot) >= 0
    }
    op_inputs = _operator_inputs(task, {at: wide(one, context) for at, one in inputs.items()}, shapes, inputs)
    if 0 not in outputs and outputs:
        raise RefusedRecord("the first result was not dumped")
    floats = [one.dtype for slot, one in loaded.items() if slot.startswith("input") and unit_of(one.dtype)]
    accumulator = 2.0**-53 if floats and set(floats) == {"float64"} else 2.0**-24
    values = {at: read(one, context) for at, one in outputs.items()}
    from npucmp.recompute.numpy_table import plan_of

    return Computation(plan_of(operator), op_inputs, outputs, values, unit, accumulator, settings.memory)


def _work_of_call(task: Task, context: ReadContext, settings: ReplaySettings, library: str) -> Computation:
    """Return a recorded call, or all its gradients, with its values."""
    call, operator, forward = task.call, task.operator, task.called
    origin = task.forward if task.is_backward else operator
    row = row_of(forward)
    assert row is not None and origin is not None
    formula = formula_by(library, row, task)
    read_from = [one for source in {operator.order: operator, origin.order: origin}.values() for one in source.tensors
                 if one.slot.startswith("input")]  # fmt: skip
    if 8 * sum(math.prod(one.shape) for one in (*operator.tensors, *origin.tensors)) > settings.memory:
        raise CallTooLarge("its tensors alone exceed --limit-memory")
    refs = {one.slot: one for one in origin.tensors}
    results = {at: refs[slot] for at, slot in enumerate(slots_of(forward)) if slot in refs}
    known = {
        at: one
        for at, one in results.items()
        if not task.is_backward or ((one.file or one.payload is not None) and not one.problem)
    }
    recorded = {at: wide(one, context) for at, one in known.items()}
    gradients: list[Any] = []
    if task.is_backward:
        slots = {one.slot: one for one in operator.tensors if one.slot.startswith("input:")}
        places = [f"input:{at}" for at in range(len(call.args))]
        gradients = [wide(slots[slot], context) if slot in slots else None for slot in places]
    bound = bound_call(task, partial(wide, context=context), results, recorded, gradients)
    floats = {one.dtype for one in read_from if unit_of(one.dtype)}
    accumulator = 2.0**-53 if floats == {"float64"} else 2.0**-24
    if not task.is_backward:
        unit = max((unit_of(one.dtype) for one in results.values()), default=0.0)
        values = {at: read(one, context) for at, one in results.items()}
        plan = plan_of_call(forward, row, formula, bound.is_once)
        return Computation(
            plan, bound.inputs, results, values, unit, accumulator, settings.memory, bound.treated, bound.others
        )
    if row.inplace and _is_overwritten(bound.inputs, recorded):
        raise OverwrittenInput("the first input was recorded after the operator overwrote it")
    unit = max((unit_of(one.dtype) for one in operator.tensors), default=0.0)
    named = {one.slot: one for one in operator.tensors}
    outputs = {at: named[slot] for at, slot in enumerate(slots_of(call)) if slot in named}
    values = {at: read(one, context) for at, one in outputs.items()}
    return Computation(BackwardPlan(formula, {}), bound.inputs, outputs, values, unit, accumulator, settings.memory,
                       bound.treated, bound.others)  # fmt: skip


def _chosen_plan(task: Task, work: Computation, nodes: list[Any]) -> BackwardPlan:
    assert isinstance(work.plan, BackwardPlan) and isinstance(work.inputs, CallInputs) and task.forward is not None
    row, formula = row_of(task.called), work.plan.formula
    assert row is not None
    is_closed = formula.is_closed
    if work.library == "torch" and task.called.prefix in OF_TORCH:
        from npucmp.recompute.torch_functions import has_one_node

        is_closed = has_one_node(row, work.inputs)
    read_from = (*task.operator.tensors, *task.forward.tensors)
    floats = {one.dtype for one in read_from if one.slot.startswith("input") and unit_of(one.dtype)}
    units = {at: unit_of(one.dtype) for at, one in work.recorded.items()}
    types = {at for at, one in work.recorded.items() if one.dtype in floats}
    name = row.call.rpartition(".")[2]
    near = NEAR_COMPOSITE if name in COMPOSITE else GRADIENT_DISTANCE
    kind = "sum" if name in PRODUCTS and work.library == "numpy" else "noise"
    return BackwardPlan(formula, chosen_gradients(nodes, work.values, units, types if is_closed else (), near), kind)


def gradient_by_place(
    task: Task, place: int, context: ReadContext, settings: ReplaySettings
) -> tuple[Computation, Array]:
    """Return all gradients of a call, recorded or not, and the one that belongs to the input at `place`. Raises
    RefusedRecord, and the errors of the readers."""
    refusal = None
    for library in libraries_of(task, settings.library):
        try:
            work = _work_of_call(task, context, settings, library)
            return work, gradient_of(work, place)
        except MissingTensor:
            raise
        except RefusedRecord as error:
            refusal = refusal or error
    raise refusal or NotInTable(f"the gradient of {task.operator.name} cannot be computed")


def gradient_of(work: Computation, place: int, seed: Optional[int] = None) -> Array:
    """Return the gradient of a tensor of a call, by its place among them; zeros if it has none."""
    node = work.nodes(seed)[0]
    found = node[place] if place < len(node) else None
    if found is None:
        assert isinstance(work.inputs, CallInputs)
        return np.zeros(arrays_in([work.inputs.args, work.inputs.kwargs])[place].shape)
    return np.asarray(found)


class OverwrittenInput(RefusedRecord):
    """A call whose input was recorded after the call had overwritten it."""

    status = "overwritten"


def _is_overwritten(inputs: CallInputs, recorded: Mapping[int, Array]) -> bool:
    before, after = inputs.first, recorded.get(0)
    return (
        before is not None and after is not None and before.shape == after.shape and bool(np.array_equal(before, after))
    )


def _operator_inputs(
    task: Task, inputs: dict[int, Array], shapes: tuple[tuple[int, ...], ...], refs: Mapping[int, TensorRef]
) -> OperatorInputs:
    """The inputs of an operator from graph and dump; each tensor has the shape that the operator reads, if it fits."""
    from npucmp.recompute.numpy_inputs import OperatorInputs

    attributes = task.operator.attributes
    read_as = {at: attributes.get(f"shape of input:{at}") for at in inputs}
    if all(shape is None or math.prod(shape) == inputs[at].size for at, shape in read_as.items()):
        inputs = {at: one if read_as[at] is None else one.reshape(read_as[at]) for at, one in inputs.items()}
    for key, value in attributes.items():
        if key.startswith("input:") and _slot_number(key) >= 0:
            inputs.setdefault(_slot_number(key), _constant(value))
    orders = {key.partition("order of ")[2]: value for key, value in attributes.items() if key.startswith("order of ")}
    for one in task.operator.tensors:
        if one.device is not None and one.device.origin:
            orders.setdefault(one.slot, one.device.origin)
    return OperatorInputs(inputs, attributes, shapes, orders, task.call.prefix[len(GRAPH) :])


def _constant(value: Any) -> Array:
    found = np.asarray(value)
    return found.astype(np.float64) if found.dtype.kind == "f" else found


def _slot_number(slot: str) -> int:
    index = slot.partition(":")[2]
    return int(index) if index.isdecimal() and len(index) < 6 else -1


def wide(tensor: TensorRef, context: ReadContext) -> Array:
    """Read floats as float64, integers as int64 and booleans unchanged. Raises RefusedRecord for other types."""
    row = lookup(tensor.dtype)
    if row is None or row.kind == "c":
        raise RefusedRecord(f"{tensor.slot} has the unsupported type {tensor.dtype!r:.40}")
    found: Array = read(tensor, context)
    return found.astype(np.float64) if row.kind == "f" else found if row.kind == "b" else found.astype(np.int64)


def nearest_versions(work: Computation, results: list[Any], picked: dict[int, int] | None = None) -> list[Any]:
    """Replace Alternatives among results by the version that is nearest to the record."""
    found = []
    for at, one in enumerate(results):
        if isinstance(one, Alternatives):
            wanted = work.values.get(at)
            fit = [other for other in one.among if wanted is not None and np.size(other) == wanted.size] or one.among
            one = fit[0] if wanted is None or len(fit) == 1 else min(
                fit, key=lambda other: _distance(np.asarray(other), wanted)
            )  # fmt: skip
        found.append(None if one is None else np.asarray(one))
    return found


def _distance(a: Array, b: Array) -> float:
    away = a.reshape(-1).astype(np.float64) - b.reshape(-1).astype(np.float64)
    found = float(np.abs(away).sum())
    return found if math.isfinite(found) else math.inf


def sigmas_of(work: Computation, exact: list[Any], settings: ReplaySettings) -> tuple[list[Any], str]:
    kind = work.plan.kind
    floats = [one is not None and one.dtype.kind == "f" for one in exact]
    if kind == "exact" or not any(floats):
        return [0.0] * len(exact), "exact"
    if kind == "sum":
        squares = work.results(work.inputs.map_floats(lambda one: one * one))
        ones = work.results(work.inputs.map_floats(np.ones_like))
        every = zip(exact, squares, ones)
        return [0.0 if a is None else np.ravel(sigma_of(a, b, c, work.accumulator)) for a, b, c in every], "walk"
    if kind == "once":
        return [ROUNDING * work.accumulator * np.abs(np.ravel(exact[0]))], "noise"
    total: list[Any] = [0.0] * len(exact)
    for trial in range(settings.trials):
        noisy = same_versions(exact, work.results(work.inputs, settings.seed + trial))
        for at, one in enumerate(noisy):
            if floats[at]:
                with np.errstate(invalid="ignore", over="ignore"):
                    total[at] = total[at] + np.square(one - exact[at])
    found = [np.sqrt(np.ravel(np.nan_to_num(one / settings.trials, nan=0.0, posinf=0.0))) if floats[at] else 0.0
             for at, one in enumerate(total)]  # fmt: skip
    return found, "noise"


def same_versions(exact: list[Any], results: list[Any]) -> list[Any]:
    """Select the same versions as in the exact results: noise is small compared with the difference of versions."""
    found = []
    for wanted, one in zip(exact, results):
        if isinstance(one, Alternatives) and wanted is not None:
            fit = [other for other in one.among if np.size(other) == wanted.size]
            one = min(fit, key=lambda other: _distance(np.asarray(other), wanted))
        found.append(one)
    return found
