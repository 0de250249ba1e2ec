"""Functions for forward and backward records: the row of an output, more trials before a GUILTY verdict, and the same
call on a CPU as a second opinion. Only child processes import this.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from npucmp.dump.limits import ReadContext
from npucmp.model import ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.model.dtypes import lookup, unit_of
from npucmp.recompute.arguments import CALL_ERRORS, Arguments, RefusedRecord, read
from npucmp.recompute.error_budget import BIAS, SAME, BudgetTally, ErrorBudget, evaluate_output
from npucmp.recompute.task import ReplaySettings, Task
from npucmp.recompute.torch_bind_call import DTYPES, Bound, mapped_any

MORE = 8  # times the trials, before an operator is GUILTY by measured noise
SPREADS = "the operator reads NaN or Inf, which kernels propagate differently"


def sure(settings: ReplaySettings, work: Callable[[ReplaySettings], list[ReplayedOutput]]) -> list[ReplayedOutput]:
    """Repeat `work` with more trials if few trials give GUILTY: the noise of single elements is then uncertain."""
    rows = work(settings)
    if any(row.verdict is ReplayVerdict.GUILTY and row.budget == "noise" and not row.nonfinite for row in rows):
        rows = work(settings._replace(trials=settings.trials * MORE))
    return rows


def row_of_output(
    task: Task, tensor: TensorRef, recorded: Any, exact: Any, due: ErrorBudget, settings: ReplaySettings
) -> ReplayedOutput:
    """The row of an output. Raises RefusedRecord for unsupported types."""
    dtype = lookup(tensor.dtype)
    if dtype is None or dtype.kind == "c" or not isinstance(exact, torch.Tensor):
        raise RefusedRecord(f"results of the type {tensor.dtype!r:.40} are not supported")
    known = settings.known.get((f"{task.call.prefix}.{task.call.name}.{task.operator.phase}", tensor.slot), 1.0)
    wide = np.float64 if dtype.kind == "f" else recorded.dtype
    actual = recorded.astype(wide).reshape(tensor.shape)
    return evaluate_output(task.operator.order, tensor.slot, actual, numpy_of(exact), dtype, due, settings.scale, known)


def second_opinion(
    rows: list[ReplayedOutput], bound: Bound, exact: list[Any], same_types: Callable[[], list[Any]]
) -> list[ReplayedOutput]:
    """Make the same call on this CPU in the recorded types for GUILTY rows. If its error is as large, the operator is
    an AMPLIFIER."""
    if not any(row.verdict is ReplayVerdict.GUILTY and row.budget != "exact" for row in rows):
        return rows
    try:
        others = same_types()
    except CALL_ERRORS:  # not every kernel exists for every type
        return rows
    found = []
    for row, other, wide in zip(rows, others, exact):
        is_guilty = row.verdict is ReplayVerdict.GUILTY and row.budget != "exact"
        if is_guilty and isinstance(other, torch.Tensor) and other.numel() == wide.numel():
            error = (other.to(torch.float64).reshape(-1) - wide.reshape(-1))[torch.isfinite(wide.reshape(-1))]
            lost, error = int((~torch.isfinite(error)).sum()), error[torch.isfinite(error)]
            rms = float(error.square().mean().sqrt()) if error.numel() else 0.0
            ratio = (row.rmse / rms if rms else math.inf) if row.rmse else 0.0
            if row.nonfinite:
                ratio = max(ratio, row.nonfinite / lost if lost else math.inf)
            row = row._replace(same_dtype_ratio=ratio)
            if ratio <= SAME and not (_is_biased(row, other, wide, bound.unit) or _is_one_sided(row, other, wide)):
                row = row._replace(
                    verdict=ReplayVerdict.AMPLIFIER, explanation="a CPU has errors as large in the same types"
                )
        found.append(row)
    return found


def _is_biased(row: ReplayedOutput, other: Any, wide: Any, unit: float) -> bool:
    """Whether errors are biased, as by truncation, and the CPU's errors are not. Truncation errors may be as small as
    twice the rounding errors."""
    if row.bias is None or not BIAS < abs(row.bias) <= 1 or not unit:
        return False
    size = wide.reshape(-1).abs()
    use = torch.isfinite(size) & (size > 0)
    toward = (wide - other.to(torch.float64)).reshape(-1)[use] * wide.reshape(-1)[use].sign() / (unit * size[use])
    return bool(toward.mean().abs() < abs(row.bias) / 2)


def _is_one_sided(row: ReplayedOutput, other: Any, wide: Any) -> bool:
    """Whether results are rounded to one side, and the CPU's results are not."""
    dtype = lookup(str(other.dtype).removeprefix("torch."))
    if row.rounding is None or not row.rounding.is_one_sided or dtype is None:
        return False
    tally = BudgetTally(dtype, "rounding", only_one=True)
    tally.add(numpy_of(other.to(torch.float64)), numpy_of(wide))
    return all(counts.direction != row.rounding.direction for counts in tally.rounding.values())


def narrow_arguments(bound: Bound) -> Arguments:
    """Arguments in their recorded types; types coarser than the result are widened, as autocast does."""
    to = DTYPES[bound.low] if bound.treated else None
    wider = torch.float32 if bound.unit == 2.0**-24 else torch.float64
    kinds = iter(
        [wider if 0 < bound.unit < unit_of(one) else DTYPES.get(one, torch.float64) for one in bound.dtypes.values()]
    )

    def narrow(one: Any) -> Any:
        dtype = next(kinds)
        return one.to(to or dtype) if one.is_floating_point() else one

    plain = bound.with_scalars(float)
    args, kwargs = mapped_any([[*plain.args], plain.kwargs], narrow)
    return Arguments(args, kwargs)


def holds_nan(tree: Any) -> bool:
    """Whether an input holds NaN or +Inf; -Inf is common in masks."""
    floats = (one for one in tensors_in(tree) if one.is_floating_point())
    return any(bool((torch.isnan(one) | (one == math.inf)).any()) for one in floats)


def root_mean_square(trials: list[Any]) -> Any:
    if not trials:
        return 0.0
    total = sum(one.reshape(-1).square() for one in trials) / len(trials)
    return np.nan_to_num(numpy_of(torch.sqrt(total)), nan=0.0, posinf=0.0)


def numpy_of(one: Any) -> Any:
    return one.detach().contiguous().numpy().reshape(-1)


def tensors_in(tree: Any) -> list[Any]:
    return [one for one in tree_flatten(tree)[0] if isinstance(one, torch.Tensor)]


def unknown_row(task: Task, slot: str, status: str, because: str) -> ReplayedOutput:
    return ReplayedOutput(task.operator.order, slot, status, explanation=because)


def wide(tensor: TensorRef, context: ReadContext) -> Any:
    return torch.from_numpy(read(tensor, context).astype(np.float64))
