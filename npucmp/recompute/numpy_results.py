"""An operator → rows: its formula in float64, its rounding budget, and the verdict."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.model import ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.model.dtypes import ROUNDING, Dtype, lookup, unit_of
from npucmp.model.optypes import op_type
from npucmp.model.replayed_output import VERSIONS
from npucmp.recompute.arguments import CallTooLarge, RefusedRecord, read, slots_of
from npucmp.recompute.call_inputs import CallInputs
from npucmp.recompute.call_table import formula_of
from npucmp.recompute.error_budget import BIAS, SAME, ErrorBudget, evaluate_output, round_to
from npucmp.recompute.noisy_ops import Alternatives, Steps, sigma_of
from npucmp.recompute.numpy_calls import ANOTHER, BackwardPlan, CallPlan, bound_call, chosen_gradients, plan_of_call
from npucmp.recompute.numpy_sample import by_sample, is_large
from npucmp.recompute.table import TURNED, row_of
from npucmp.recompute.task import GRAPH, ReplaySettings, Task, kind_of

if TYPE_CHECKING:
    from npucmp.recompute.numpy_inputs import OperatorInputs
    from npucmp.recompute.numpy_table import Plan

MORE = 8  # times the trials, before an operator is GUILTY by measured noise
SMALL = 1 << 22  # elements: up to this many, MORE times the trials are run
SPREADS = "the operator reads NaN or Inf, which kernels propagate differently"


class NumpyTask(NamedTuple):
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

    def results(self, inputs: OperatorInputs | CallInputs, seed: int | None = None) -> list[Any]:
        steps = Steps(self.unit, self.accumulator, self.memory, seed)
        try:
            with np.errstate(all="ignore"):
                return self.plan.results(steps, inputs)  # type: ignore[arg-type]  # a plan has inputs of its own kind
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:  # raised by numpy for unexpected shapes or types
            raise RefusedRecord(f"the formula does not fit the record: {error}"[:160]) from None

    def nodes(self) -> list[Any]:
        """The autograd nodes whose gradients a backward record may hold."""
        assert isinstance(self.plan, BackwardPlan)
        chosen: list[Any] = self._replace(plan=_Nodes(self.plan)).results(self.inputs)  # type: ignore[arg-type]
        return chosen


class _Nodes(NamedTuple):
    """A plan that returns all nodes of a backward formula."""

    plan: BackwardPlan

    def results(self, m: Steps, g: CallInputs) -> list[Any]:
        return [*self.plan.nodes(m, g)]


def replay_rows(task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
    """The rows of a task. Raises RefusedRecord, and the errors of the readers."""
    if is_large(task):
        return by_sample(task, context, settings)
    work, exact = compute_operator(task, context, settings)
    overwritten = _overwrites_input(task, work, exact)
    if overwritten:
        because = "the first input was recorded after the operator overwrote it"
        return [
            ReplayedOutput(task.operator.order, one.slot, "overwritten", explanation=because) for one in task.outputs
        ]
    return _evaluate_rows(task, work, exact, settings)


def _evaluate_rows(task: Task, work: NumpyTask, exact: list[Any], settings: ReplaySettings) -> list[ReplayedOutput]:
    rows = _rows(task, work, exact, settings)
    if any(row.verdict is ReplayVerdict.GUILTY and row.budget == "noise" and not row.nonfinite for row in rows):
        is_small = sum(one.size for one in work.inputs.all) <= SMALL
        rows = _rows(task, work, exact, settings._replace(trials=settings.trials * (MORE if is_small else 2)))
    rows = _clear_rows(task, work, rows, settings)
    return _float32_result(task, work, exact, rows, settings)


def _clear_rows(
    task: Task, work: NumpyTask, rows: list[ReplayedOutput], settings: ReplaySettings
) -> list[ReplayedOutput]:
    """Replace GUILTY rows by CLEAN ones if another rounding of scalars or of a bias gives them."""
    for other in work.others:
        if not any(row.verdict is ReplayVerdict.GUILTY for row in rows):
            return rows
        again = work._replace(inputs=other)
        others = _rows(task, again, nearest_versions(again, again.results(other)), settings)
        rows = [
            b if a.verdict is ReplayVerdict.GUILTY and b.verdict is ReplayVerdict.CLEAN else a
            for a, b in zip(rows, others)
        ]
    return rows


def compute_operator(task: Task, context: ReadContext, settings: ReplaySettings) -> tuple[NumpyTask, list[Any]]:
    """Return an operator and its results in float64. Raises RefusedRecord, and the errors of the readers."""
    work_of = _work_of_operator if task.call.prefix.startswith(GRAPH) else _work_of_call
    work = work_of(task, context, settings)
    results = work.results(work.inputs)
    several = frozenset(at for at, one in enumerate(results) if isinstance(one, Alternatives) and len(one.among) > 1)
    return work._replace(versions=several), nearest_versions(work, results)


def _work_of_operator(task: Task, context: ReadContext, settings: ReplaySettings) -> NumpyTask:
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

    return NumpyTask(plan_of(operator), op_inputs, outputs, values, unit, accumulator, settings.memory)


def _work_of_call(task: Task, context: ReadContext, settings: ReplaySettings) -> NumpyTask:
    """Return a recorded call, or its gradients, with its values."""
    call, operator = task.call, task.operator
    forward = task.forward_call if task.is_backward else call
    origin = task.forward if task.is_backward else operator
    assert forward is not None and origin is not None
    row = row_of(forward)
    assert row is not None
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
        plan = plan_of_call(forward, row, bound.is_once)
        return NumpyTask(
            plan, bound.inputs, results, values, unit, accumulator, settings.memory, bound.treated, bound.others
        )
    if row.inplace and _is_overwritten(bound.inputs, recorded):
        raise OverwrittenInput("the first input was recorded after the operator overwrote it")
    unit = max((unit_of(one.dtype) for one in operator.tensors), default=0.0)
    named = {one.slot: one for one in operator.tensors}
    outputs = {at: named[slot] for at, slot in enumerate(slots_of(call)) if slot in named}
    values = {at: read(one, context) for at, one in outputs.items()}
    formula = formula_of(forward)
    assert formula is not None
    work = NumpyTask(BackwardPlan(formula, {}), bound.inputs, outputs, values, unit, accumulator, settings.memory,
                bound.treated, bound.others)  # fmt: skip
    nodes = work.nodes()
    units = {at: unit_of(one.dtype) for at, one in outputs.items()}
    types = {at for at, one in outputs.items() if one.dtype in floats}
    chosen = chosen_gradients(formula, nodes, values, units, types)
    return work._replace(plan=BackwardPlan(formula, chosen))


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


def nearest_versions(work: NumpyTask, results: list[Any], picked: dict[int, int] | None = None) -> list[Any]:
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


def _overwrites_input(task: Task, work: NumpyTask, exact: list[Any]) -> bool:
    """Whether an operator overwrites its first input and the record holds the overwritten values."""
    before, after = work.inputs.first, work.values.get(0)
    row = row_of(task.call)
    is_in_place = row.inplace if row is not None else op_type(task.operator.op_type).has("in place")
    if not is_in_place or task.is_backward or before is None or after is None:
        return False
    is_float = before.dtype.kind == "f"
    if before.shape != after.shape or not np.array_equal(before, after.astype(before.dtype), equal_nan=is_float):
        return False
    return not np.array_equal(np.asarray(exact[0]).reshape(-1), before.reshape(-1))


def _sigmas(work: NumpyTask, exact: list[Any], settings: ReplaySettings) -> tuple[list[Any], str]:
    kind = work.plan.kind
    floats = [one is not None and one.dtype.kind == "f" for one in exact]
    if kind == "exact" or not any(floats):
        return [0.0] * len(exact), "exact"
    if kind == "sum":
        squares = work.results(work.inputs.map_floats(lambda one: one * one))[0]
        ones = work.results(work.inputs.map_floats(np.ones_like))[0]
        return [np.ravel(sigma_of(exact[0], squares, ones, work.accumulator))], "walk"
    if kind == "once":
        return [ROUNDING * work.accumulator * np.abs(np.ravel(exact[0]))], "noise"
    total: list[Any] = [0.0] * len(exact)
    for trial in range(settings.trials):
        noisy = _nearest_to(exact, work.results(work.inputs, settings.seed + trial))
        for at, one in enumerate(noisy):
            if floats[at]:
                with np.errstate(invalid="ignore", over="ignore"):
                    total[at] = total[at] + np.square(one - exact[at])
    found = [np.sqrt(np.ravel(np.nan_to_num(one / settings.trials, nan=0.0, posinf=0.0))) if floats[at] else 0.0
             for at, one in enumerate(total)]  # fmt: skip
    return found, "noise"


def _nearest_to(exact: list[Any], results: list[Any]) -> list[Any]:
    """Select the same versions as in the exact results: noise is small compared with the difference of versions."""
    found = []
    for wanted, one in zip(exact, results):
        if isinstance(one, Alternatives) and wanted is not None:
            fit = [other for other in one.among if np.size(other) == wanted.size]
            one = min(fit, key=lambda other: _distance(np.asarray(other), wanted))
        found.append(one)
    return found


def _rows(task: Task, work: NumpyTask, exact: list[Any], settings: ReplaySettings) -> list[ReplayedOutput]:
    sigmas, made_of = _sigmas(work, exact, settings)
    rows = []
    for at, tensor in work.recorded.items():
        dtype = lookup(tensor.dtype)
        if dtype is None or dtype.kind == "c":
            raise RefusedRecord(f"results of the type {tensor.dtype!r:.40} are not supported")
        if isinstance(work.plan, BackwardPlan) and (at >= len(exact) or exact[at] is None):
            rows.append(_another(task, tensor, "no gradient of this call has its shape"))
            continue
        if at >= len(exact) or exact[at] is None:
            words = "only the gradient reads this output, and its form depends on the device"
            rows.append(ReplayedOutput(task.operator.order, tensor.slot, "not in table", explanation=words))
            continue
        wanted = _as_type(exact[at], tensor.dtype)
        if wanted.size != math.prod(tensor.shape) or not (work.plan.views or _shapes_fit(wanted.shape, tensor.shape)):
            raise RefusedRecord(f"a result of {list(wanted.shape)}, recorded is {list(tensor.shape)}"[:160])
        kind = kind_of(task.operator, task.call.prefix), tensor.slot
        known = settings.known.get(kind, 1.0)
        actual = work.values[at]
        actual = (actual.astype(np.float64) if dtype.kind == "f" else actual).reshape(tensor.shape)
        flat = wanted.astype(np.float64).reshape(-1) if dtype.kind == "f" else wanted.reshape(-1)
        is_backward = isinstance(work.plan, BackwardPlan)
        sigma = sigmas[at]
        if is_backward and work.treated and dtype.round_off < work.unit:  # of an input that autocast rounded
            sigma = np.hypot(sigma, ROUNDING * work.unit * np.abs(flat))
        due = ErrorBudget(sigma, made_of, work.plan.kind == "once")
        row = evaluate_output(task.operator.order, tensor.slot, actual, flat, dtype, due, settings.scale, known)
        if at in work.versions and row.verdict is ReplayVerdict.CLEAN:
            row = row._replace(explanation=VERSIONS)
        chosen = work.plan.chosen.get(at) if isinstance(work.plan, BackwardPlan) else None
        if row.verdict is ReplayVerdict.GUILTY and chosen is not None and not chosen.is_sure:
            words = "it is near no gradient of this call; a device may split the call differently"
            row = _another(task, tensor, words)
        elif row.verdict is ReplayVerdict.GUILTY and chosen is not None and _passes_gradient(work, actual, dtype):
            row = _another(task, tensor, "it equals the incoming gradient: the call may end in a cast or a view")
        elif (
            row.verdict is ReplayVerdict.CLEAN
            and is_backward
            and task.call.name in TURNED
            and _passes_gradient(work, actual, dtype)
        ):
            words = "the record holds the incoming gradient, not the computed gradients"
            row = row._replace(budget="exact", rms_ratio=0.0, max_ratio=0.0, explanation=words)
        if work.others and row.verdict is not ReplayVerdict.GUILTY:  # a rounded scalar has an error of one sign
            row = row._replace(rounding=None)
        rows.append(_doubted(row, work)._replace(treated=work.treated))
    return rows


def _passes_gradient(work: NumpyTask, actual: Array, dtype: Dtype) -> bool:
    """Whether a recorded gradient equals the incoming gradient, element by element, after rounding to its type."""
    gradients = [one for one in work.inputs.gradients if one is not None] if isinstance(work.inputs, CallInputs) else []
    if len(gradients) != 1 or gradients[0].size != actual.size:
        return False
    return bool(np.array_equal(round_to(gradients[0].ravel(), dtype), actual.ravel()))


def _another(task: Task, tensor: TensorRef, because: str) -> ReplayedOutput:
    return ReplayedOutput(task.operator.order, tensor.slot, ANOTHER, explanation=because)


def _doubted(row: ReplayedOutput, work: NumpyTask) -> ReplayedOutput:
    """Replace GUILTY by UNKNOWN if the inputs have doubts, or if NaN or Inf among them explain the difference."""
    if row.verdict is not ReplayVerdict.GUILTY:
        return row
    if row.nonfinite and any(one.dtype.kind == "f" and not np.isfinite(one).all() for one in work.inputs.all):
        return row._replace(verdict=ReplayVerdict.UNKNOWN, explanation=SPREADS)
    if work.inputs.doubts:
        return row._replace(verdict=ReplayVerdict.UNKNOWN, explanation="; ".join(work.inputs.doubts))
    return row


def _float32_result(
    task: Task, work: NumpyTask, exact: list[Any], rows: list[ReplayedOutput], settings: ReplaySettings
) -> list[ReplayedOutput]:
    """Compute the same formula in float32, rounded once. If all its errors are as large, the operator is an
    AMPLIFIER."""
    if work.accumulator < 2.0**-24 or not any(_is_coarse(row) for row in rows):
        return rows
    others = _nearest_to(exact, work.results(work.inputs.map_floats(lambda one: one.astype(np.float32))))
    values = {}
    for at, tensor in work.recorded.items():
        dtype = lookup(tensor.dtype)
        same = dtype is not None and dtype.kind == "f" and at < len(others) and others[at] is not None
        values[at] = round_to(np.ravel(others[at]).astype(np.float64), dtype) if dtype and same else work.values[at]
    found = []
    for row, other in zip(rows, _rows(task, work._replace(values=values), exact, settings)):
        if _is_coarse(row) and row.rmse:
            row = row._replace(same_dtype_ratio=row.rmse / other.rmse if other.rmse else math.inf)
            if _is_alike(row, other):
                row = row._replace(
                    verdict=ReplayVerdict.AMPLIFIER, explanation="a CPU has errors as large in the same types"
                )
        found.append(row)
    return found


def _is_coarse(row: ReplayedOutput) -> bool:
    return row.verdict is ReplayVerdict.GUILTY and not row.nonfinite and row.budget != "exact"


def _is_alike(row: ReplayedOutput, other: ReplayedOutput) -> bool:
    pairs = [(row.rms_ratio, other.rms_ratio), (row.max_ratio, other.max_ratio)]
    far = any(a is None or b is None or a > SAME * b for a, b in pairs)
    counts = row.rounding, other.rounding
    sides = [one.direction if one is not None and one.is_one_sided else "" for one in counts]
    far = far or sides[0] not in ("", sides[1])
    return not far and abs(row.bias or 0.0) <= max(BIAS, SAME * abs(other.bias or 0.0))


def _as_type(values: Array, dtype: str) -> Array:
    """Convert float results to the recorded type if it is an integer or boolean type."""
    row = lookup(dtype)
    if row is None or row.kind not in "iub" or values.dtype.kind != "f":
        return values
    with np.errstate(invalid="ignore"):
        return values != 0 if row.kind == "b" else np.trunc(values).astype(np.int64)


def _shapes_fit(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes are equal apart from axes of size 1."""
    return [one for one in a if one != 1] == [one for one in b if one != 1]
