"""A record → rows: its results in float64, its rounding budget, and the verdict. Only child processes import this."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Iterator, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.model import ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.model.dtypes import ROUNDING, Dtype, lookup, unit_of
from npucmp.model.optypes import op_type
from npucmp.model.replayed_output import VERSIONS
from npucmp.recompute.arguments import CallTooLarge, RefusedRecord
from npucmp.recompute.bound_call import ANOTHER, SIZED, BackwardPlan
from npucmp.recompute.call_inputs import CallInputs
from npucmp.recompute.computation import MORE, Computation, compute_operator, same_versions, sigmas_of
from npucmp.recompute.error_budget import BIAS, SAME, ErrorBudget, evaluate_output, round_to
from npucmp.recompute.index_choice import free_choice
from npucmp.recompute.library import libraries_of
from npucmp.recompute.sampled_products import PASSED, by_sample, is_large
from npucmp.recompute.table import INDICES, STEPPED, STEPPED_BY, TURNED, row_of
from npucmp.recompute.task import ReplaySettings, Task, kind_of

BIASES = {  # places of a bias that is added to a product
    **dict.fromkeys(
        ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        (2, "bias"),
    ),
    "bilinear": (3, "bias"), "addmm": (0, "input"), "baddbmm": (0, "input"),
}  # fmt: skip
LARGE = 1 << 17  # elements of an output: from there on a call is made row by row, where rows are independent
SMALL = 1 << 22  # elements: up to this many, MORE times the trials are run
SPREADS = "the operator reads NaN or Inf, which kernels propagate differently"


def replay_rows(task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
    """The rows of a task. Raises RefusedRecord, and the errors of the readers."""
    if is_large(task):
        return by_sample(task, context, settings)
    found = None
    if not task.is_of_graph and max((math.prod(one.shape) for one in task.outputs), default=0) >= LARGE:
        from npucmp.recompute.row_blocks import by_blocks

        found = by_blocks(task, context, settings)
        if found is not None and not any(row.verdict is ReplayVerdict.GUILTY for row in found):
            return found
    try:
        return _whole_rows(task, context, settings)
    except CallTooLarge:
        if found is None:
            raise
        return found


def _whole_rows(task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
    work, exact = compute_operator(task, context, settings)
    if _overwrites_input(task, work, exact):
        because = "the first input was recorded after the operator overwrote it"
        return [
            ReplayedOutput(task.operator.order, one.slot, "overwritten", explanation=because) for one in task.outputs
        ]
    rows = _rows(task, work, exact, settings)
    if any(row.verdict is ReplayVerdict.GUILTY and row.budget == "noise" and not row.nonfinite for row in rows):
        is_small = sum(one.size for one in work.inputs.all) <= SMALL
        rows = _rows(task, work, exact, settings._replace(trials=settings.trials * (MORE if is_small else 2)))
    is_doubted = any(row.verdict is ReplayVerdict.UNKNOWN for row in rows) and bool(work.inputs.doubts)
    is_call = work.library == "numpy" and not task.is_of_graph
    if is_doubted and is_call and "torch" in libraries_of(task, settings.library):
        return _whole_rows(task, context, settings._replace(library="torch"))  # it chooses as most kernels do
    rows = _clear_rows(task, work, exact, rows, settings)
    rows = _second_opinion(task, work, exact, rows, context, settings)
    if not settings.explains:
        return rows
    from npucmp.recompute.hypotheses import with_hypotheses

    return with_hypotheses(rows, None if task.is_of_graph else task.called, work, exact)


def _clear_rows(
    task: Task, work: Computation, exact: list[Any], rows: list[ReplayedOutput], settings: ReplaySettings
) -> list[ReplayedOutput]:
    """Replace GUILTY rows by CLEAN ones if another rounding of scalars or of a bias gives them. Near a step, an
    operator with steps may round each element to either side."""
    if not any(row.verdict is ReplayVerdict.GUILTY or row.status == ANOTHER for row in rows):
        return rows
    others = [*_other_results(work, exact, work.others)]
    if _is_stepped(task) or work.plan.kind == "exact" or task.called.name in SIZED:
        others.append(_nearest_elements(work, exact, [*others, *_near_steps(task, work, exact)]))
    for other in others:
        again = _rows(task, work, other, settings)
        rows = [
            b if b.verdict is ReplayVerdict.CLEAN and (a.verdict is ReplayVerdict.GUILTY or a.status == ANOTHER) else a
            for a, b in zip(rows, again)
        ]
    if any(row.verdict is ReplayVerdict.GUILTY for row in rows) and (bias := _rounded_before_bias(task, work, exact)):
        again = _rows(task, work, exact, settings, bias)
        rows = [b if b.verdict is ReplayVerdict.CLEAN and a.verdict is ReplayVerdict.GUILTY else a
                for a, b in zip(rows, again)]  # fmt: skip
    return rows


def _rounded_before_bias(task: Task, work: Computation, exact: list[Any]) -> list[Array]:
    """The noise of a 16-bit kernel that rounds a product before it adds the bias, and under autocast the bias too; none
    for other calls."""
    row = row_of(task.called)
    place, name = BIASES.get(row.call.rpartition(".")[2], (0, "")) if row is not None else (0, "")
    low = any(unit_of(one.dtype) > 2.0**-13 for one in work.recorded.values())
    if not name or not low or task.is_backward or not isinstance(work.inputs, CallInputs):
        return []
    args, kwargs = work.inputs.args, work.inputs.kwargs
    bias = args[place] if len(args) > place else kwargs.get(name)
    if not isinstance(bias, np.ndarray):
        return []
    if len(args) > place:
        without = replace(work.inputs, args=(*args[:place], bias * 0.0, *args[place + 1 :]))
    else:
        without = replace(work.inputs, kwargs={**kwargs, name: bias * 0.0})
    product = work.results(without)[0]
    rest = exact[0] - product if work.treated else 0.0
    return [ROUNDING * work.unit * np.hypot(product, rest).ravel()]


def _is_stepped(task: Task) -> bool:
    """Whether the call rounds a quotient or a product before it applies a step function."""
    name = task.called.name if task.called.name.startswith("__") else task.called.name.rstrip("_")
    return name in STEPPED and (name not in STEPPED_BY or bool(task.called.kwargs.get(STEPPED_BY[name])))


def _near_steps(task: Task, work: Computation, exact: list[Any]) -> list[list[Any]]:
    """The results in float32, and of an operator with steps those with its first input changed by a rounding."""
    changes = [work.inputs.map_floats(lambda one: one.astype(np.float32))]
    if _is_stepped(task) and work.unit and isinstance(work.inputs, CallInputs) and work.inputs.first is not None:
        first, *rest = work.inputs.args
        changes += [replace(work.inputs, args=(first * (1 + step * work.unit), *rest)) for step in (-2, 2)]
    return [*_other_results(work, exact, changes)]


def _other_results(work: Computation, exact: list[Any], changes: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the results for other inputs, without those of another shape: a rounded scale may give another size."""
    for inputs in changes:
        try:
            found = same_versions(exact, work.results(inputs))
        except RefusedRecord:
            continue
        if [np.shape(one) for one in found] == [np.shape(one) for one in exact]:
            yield found


def _nearest_elements(work: Computation, exact: list[Any], others: Sequence[list[Any]]) -> list[Any]:
    """For each element the result that is nearest to the record."""
    found = []
    for at, best in enumerate(exact):
        if best is not None and at in work.values and best.size == work.values[at].size:
            recorded = work.values[at].reshape(best.shape)
            for other in others:
                if at < len(other) and other[at] is not None and np.shape(other[at]) == best.shape:
                    with np.errstate(invalid="ignore"):
                        is_nearer = (other[at] == recorded) | (
                            np.abs(other[at] - 1.0 * recorded) < abs(best - 1.0 * recorded)
                        )
                    best = np.where(is_nearer, other[at], best)
        found.append(best)
    return found


def _overwrites_input(task: Task, work: Computation, exact: list[Any]) -> bool:
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


def _rows(
    task: Task, work: Computation, exact: list[Any], settings: ReplaySettings, beside: Sequence[Array] = ()
) -> list[ReplayedOutput]:
    """The rows of the outputs; `beside` is noise in addition to that of the formula."""
    sigmas, made_of = sigmas_of(work, exact, settings)
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
        sigma = np.hypot(sigmas[at], beside[at]) if at < len(beside) else sigmas[at]
        if is_backward and work.treated and dtype.round_off < work.unit:  # of an input that autocast rounded
            sigma = np.hypot(sigma, ROUNDING * work.unit * np.abs(flat))
        due = ErrorBudget(sigma, made_of, work.plan.kind == "once")
        row = evaluate_output(task.operator.order, tensor.slot, actual, flat, dtype, due, settings.scale, known)
        if row.verdict is ReplayVerdict.GUILTY and task.called.name in INDICES and dtype.kind in "iu":
            row = _with_free_choice(task, work, row, at, wanted, settings)
        if at in work.versions and row.verdict is ReplayVerdict.CLEAN:
            row = row._replace(explanation=VERSIONS)
        if row.verdict is ReplayVerdict.GUILTY and not work.is_sure(at):
            words = "it is near no gradient of this call; a device may split the call differently"
            row = _another(task, tensor, words)
        elif row.verdict is ReplayVerdict.GUILTY and is_backward and _passes_gradient(work, actual, dtype):
            row = _another(task, tensor, "it equals the incoming gradient: the call may end in a cast or a view")
        elif (
            row.verdict is ReplayVerdict.CLEAN
            and is_backward
            and task.call.name in TURNED
            and _passes_gradient(work, actual, dtype)
        ):
            row = row._replace(budget="exact", rms_ratio=0.0, max_ratio=0.0, explanation=PASSED)
        if work.others and row.verdict is not ReplayVerdict.GUILTY:  # a rounded scalar has an error of one sign
            row = row._replace(rounding=None)
        rows.append(_doubted(row, work)._replace(treated=work.treated))
    return rows


def _with_free_choice(
    task: Task, work: Computation, row: ReplayedOutput, at: int, exact: Array, settings: ReplaySettings
) -> ReplayedOutput:
    """The row of indices among which a device may choose."""
    assert isinstance(work.inputs, CallInputs)
    tensor, actual = work.recorded[at], work.values[at]
    wanted = free_choice(task.called.name, work.inputs, actual, exact)
    if wanted is None:
        words = "indices differ; NaN or unsorted results allow any"
        return row._replace(verdict=ReplayVerdict.UNKNOWN, explanation=words)
    dtype, due = lookup(tensor.dtype), ErrorBudget(0.0, "exact")
    assert dtype is not None
    return evaluate_output(
        task.operator.order, tensor.slot, actual.reshape(tensor.shape), wanted.ravel(), dtype, due, settings.scale
    )


def _passes_gradient(work: Computation, actual: Array, dtype: Dtype) -> bool:
    """Whether a recorded gradient equals the incoming gradient, element by element, after rounding to its type."""
    gradients = [one for one in work.inputs.gradients if one is not None] if isinstance(work.inputs, CallInputs) else []
    if len(gradients) != 1 or gradients[0].size != actual.size:
        return False
    return bool(np.array_equal(round_to(gradients[0].ravel(), dtype), actual.ravel()))


def _another(task: Task, tensor: TensorRef, because: str) -> ReplayedOutput:
    return ReplayedOutput(task.operator.order, tensor.slot, ANOTHER, explanation=because)


def _doubted(row: ReplayedOutput, work: Computation) -> ReplayedOutput:
    """Replace GUILTY by UNKNOWN if the inputs have doubts, or if NaN or Inf among them explain the difference."""
    if row.verdict is not ReplayVerdict.GUILTY:
        return row
    if row.nonfinite and any(one.dtype.kind == "f" and not np.isfinite(one).all() for one in work.inputs.all):
        return row._replace(verdict=ReplayVerdict.UNKNOWN, explanation=SPREADS)
    if work.inputs.doubts:
        return row._replace(verdict=ReplayVerdict.UNKNOWN, explanation="; ".join(work.inputs.doubts))
    return row


def _second_opinion(
    task: Task, work: Computation, exact: list[Any], rows: list[ReplayedOutput], context: ReadContext,
    settings: ReplaySettings,
) -> list[ReplayedOutput]:  # fmt: skip
    """Compute the same formula in float32, rounded once; results of 16 bits by torch's function in their type, if torch
    is installed. If all its errors are as large, the operator is an AMPLIFIER."""
    types = [dtype for one in work.recorded.values() if (dtype := lookup(one.dtype)) is not None and dtype.kind == "f"]
    low = max(types, key=lambda one: one.round_off, default=None)
    is_short = low is not None and low.itemsize <= 2 and "torch" in libraries_of(task, settings.library)
    is_torch = work.library == "torch" or is_short
    if work.accumulator < 2.0**-24 or not any(_is_coarse(row, is_torch) for row in rows):
        return rows
    inputs = work.inputs if is_torch else work.inputs.map_floats(lambda one: one.astype(np.float32))
    try:
        if is_short and work.library != "torch":
            own = compute_operator(task, context, settings._replace(library="torch"))[0]
            others = own.results(own.inputs, narrow=low)
        else:
            others = same_versions(exact, work.results(inputs, narrow=low if is_torch else None))
    except RefusedRecord:  # not every kernel exists for every type
        return rows
    values = {}
    for at, tensor in work.recorded.items():
        dtype = lookup(tensor.dtype)
        same = dtype is not None and dtype.kind == "f" and at < len(others) and others[at] is not None
        values[at] = round_to(np.ravel(others[at]).astype(np.float64), dtype) if dtype and same else work.values[at]
    found = []
    for row, other in zip(rows, _rows(task, work._replace(values=values), exact, settings)):
        if _is_coarse(row, is_torch) and (row.rmse or row.nonfinite):
            ratio = (row.rmse / other.rmse if other.rmse else math.inf) if row.rmse else 0.0
            row = row._replace(same_dtype_ratio=ratio)
            if _is_alike(row, other):
                row = row._replace(
                    verdict=ReplayVerdict.AMPLIFIER, explanation="a CPU has errors as large in the same types"
                )
        found.append(row)
    return found


def _is_coarse(row: ReplayedOutput, with_nonfinite: bool) -> bool:
    is_finite = not row.nonfinite or with_nonfinite
    return row.verdict is ReplayVerdict.GUILTY and is_finite and row.budget != "exact"


def _is_alike(row: ReplayedOutput, other: ReplayedOutput) -> bool:
    pairs = [(row.rms_ratio, other.rms_ratio), (row.max_ratio, other.max_ratio)]
    far = any((a or 0.0) > SAME * (b or 0.0) for a, b in (*pairs, (row.nonfinite, other.nonfinite)))
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
