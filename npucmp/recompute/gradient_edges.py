"""Check that the gradient of an output is the sum of the gradients from its consumers.

npucmp computes the sum in float64 from the incoming gradients of the consumers, even if no record holds the gradients
that they return. So the check covers code between dumped operators. If the sum differs, npucmp tries the recorded
gradients of the consumers (a wrong gradient there is reported there), then leaves out some consumers (a tensor may have
been detached). If it still differs, the edge is BROKEN if all consumers are known, else UNKNOWN. Only child processes
import this.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.model import Edge, EdgeVerdict, ReplayedOutput, ReplayVerdict, Slot, TensorRef
from npucmp.model.dtypes import ROUNDING, lookup, unit_of
from npucmp.recompute.arguments import RefusedRecord, flat, read
from npucmp.recompute.computation import MORE, Computation, gradient_by_place, gradient_of, wide
from npucmp.recompute.data_flow import Consumer, EdgeTask
from npucmp.recompute.dual_numbers import Dual, DualNumpy
from npucmp.recompute.error_budget import MAX, MAX_16, RMS, RMS_16, ErrorBudget, evaluate_output
from npucmp.recompute.gaps import BINARY, SCALE, UNARY, applied, cast
from npucmp.recompute.permutations import Permutation, places_in
from npucmp.recompute.sampled_products import is_large
from npucmp.recompute.table import row_of
from npucmp.recompute.task import ReplaySettings

LARGE = 1 << 17  # elements: work: from there on the records of consumers are asked before anything is computed
OF_RECORDS = "it is the sum of the recorded gradients of its consumers"
SURE, MOST = 2.0, 1.5  # ratios above which the noise of the parts is measured, and measured again
ADDED = 2.0  # rms error of additions in the accumulator, in its round-off; clean gradients have up to 3.7
NOISE_LIMIT = 1e4  # times the rounding: no noise causes this
MOST_CONSUMERS = 6  # consumers: up to this number, sums without some of them are tried
STOPPED = ("random", "ranks", "dropout")  # kinds of the table whose gradient needs more than the record


class _Consumer(NamedTuple):
    """A consumer of an output: the gradients of its call. `place` is that of the input among the tensors of the call;
    `back` maps the gradient of its input to the output; `exact` is the result in float64."""

    part: Consumer
    work: Computation
    place: int
    back: Callable[[Array], Array]
    exact: Array
    unit: float
    is_unsure: bool

    def noisy(self, seed: int) -> Array:
        return self.back(gradient_of(self.work, self.place, seed))


def edge(task: EdgeTask, context: ReadContext, settings: ReplaySettings) -> Edge:
    """Check the gradient of an output. Raises RefusedRecord, and the errors of the readers.

    Functions with equal results on the recorded values, for example a relu and a cast of positive values, may have
    different gradients: if several functions fit, each is tried.
    """
    found = _edge(task, context, settings)
    others = [*dict.fromkeys(name for part in task.parts if part.gap is not None for name in part.gap.others)]
    for name in others if found.verdict is not EdgeVerdict.CLEAN else ():
        parts = tuple(
            part._replace(gap=part.gap._replace(function=name)) if part.gap and name in part.gap.others else part
            for part in task.parts
        )
        other = _edge(task._replace(parts=parts), context, settings)
        if other.verdict is EdgeVerdict.CLEAN:
            return other
    return found


def _edge(task: EdgeTask, context: ReadContext, settings: ReplaySettings) -> Edge:
    via = _via(task)
    order = task.task.operator.order
    found = Edge(order, task.slot, consumers=tuple(sorted({one.task.operator.order for one in task.parts})), via=via)
    if not task.parts:
        return found._replace(explanation=task.missing or "no dumped operator reads it")
    tensor = next(one for one in task.task.operator.tensors if one.slot == task.slot)
    dtype = lookup(tensor.dtype)
    actual = read(tensor, context).astype(np.float64).reshape(-1)
    if dtype is None or dtype.kind != "f" or math.prod(tensor.shape) != math.prod(task.tensor.shape):
        return found._replace(explanation="the shape of the gradient differs from the shape of the output")
    if actual.size >= LARGE and _is_sum_of_records(task, tensor, actual, context, settings):
        return found._replace(verdict=EdgeVerdict.CLEAN, explanation=OF_RECORDS)
    consumers = [_consumer(one, task.tensor, context, settings) for one in task.parts]
    checker = _Checker(tensor, actual, consumers, settings)
    row = checker.row([one.exact for one in consumers])
    found = found._replace(ratio=row.rms_ratio, rel_l2_u=row.rel_l2_u)
    if row.nonfinite or not np.isfinite(actual).all():
        return found._replace(explanation="NaN or Inf, which kernels propagate differently")
    if checker.fits(row):
        return found._replace(verdict=EdgeVerdict.CLEAN)
    recorded = [_recorded_gradient(one.part, one.back, context) for one in consumers]
    if any(one is not None for one in recorded):
        other = checker.row([one.exact if own is None else own for one, own in zip(consumers, recorded)])
        if checker.fits(other):
            return found._replace(verdict=EdgeVerdict.CLEAN, explanation=OF_RECORDS)
    without = _missing_consumers(checker, consumers)
    if without:
        return found._replace(explanation=f"it is the sum without {without}: detached there, or lost")
    factor = _factor(checker, consumers)
    if factor and not _is_whole(factor):  # no undumped consumer returns this multiple
        return found._replace(verdict=EdgeVerdict.BROKEN, explanation=f"it is {factor:.6g} times the sum")
    if any(one.is_unsure for one in consumers):
        return found._replace(explanation="some of its rows are equal, so their order is unknown")
    if task.missing:
        return found._replace(explanation=task.missing)
    return found._replace(verdict=EdgeVerdict.BROKEN, explanation=_explain_gradient(factor, checker, row))


class _Checker:
    """Compare sums of gradients with the recorded gradient. The rounding of the parts explains most differences; noise
    is only measured for larger ones."""

    def __init__(self, tensor: TensorRef, actual: Any, consumers: list[_Consumer], settings: ReplaySettings) -> None:
        self.tensor, self.actual, self.consumers, self.settings = tensor, actual, consumers, settings
        self.unit = unit_of(tensor.dtype)
        self.total: Any = sum(one.exact for one in consumers)
        self.sigma = self._rounding()
        self.trials = 0

    def row(self, parts: list[Any]) -> ReplayedOutput:
        """The row of a sum. Sigma is the sigma of all parts, even if `parts` has fewer."""
        row = self._row(sum(parts))
        for limit, trials in ((SURE, self.settings.trials), (MOST, self.settings.trials * MORE)):
            ratio = row.rms_ratio or 0.0
            if ratio > NOISE_LIMIT or (self.fits(row) and ratio <= limit):
                break
            if self.trials < trials:
                self.trials = trials
                self.sigma = np.hypot(self._rounding(), self._noise(trials))
                row = self._row(sum(parts))
        return row

    def fits(self, row: ReplayedOutput) -> bool:
        low = self.unit > 2.0**-20
        most = (RMS_16 if low else RMS) * self.settings.scale, (MAX_16 if low else MAX) * self.settings.scale
        return not row.nonfinite and (row.rms_ratio or 0.0) <= most[0] and (row.max_ratio or 0.0) <= most[1]

    def _row(self, total: Any) -> ReplayedOutput:
        dtype = lookup(self.tensor.dtype)
        assert dtype is not None
        return evaluate_output(
            0, self.tensor.slot, self.actual.reshape(self.tensor.shape), total, dtype, ErrorBudget(self.sigma, "noise")
        )

    def _rounding(self) -> Any:
        """The rounding of each part to the type of its consumer, and of their sums to the type of the gradient."""
        squares = [(one.unit * one.exact) ** 2 for one in self.consumers]
        sums = np.cumsum([np.abs(one.exact) for one in self.consumers], axis=0)[1:]
        unit = max(self.unit, min(one.unit for one in self.consumers))
        of_sums = sum((ADDED * one.work.accumulator * _rms(one.exact)) ** 2 for one in self.consumers)
        rounding = sum(squares) + sum(((unit * one) ** 2 for one in sums), 0.0)
        return np.sqrt(ROUNDING**2 * rounding + of_sums)

    def _noise(self, trials: int) -> Any:
        total: Any = 0.0
        for one in self.consumers:
            seeds = range(self.settings.seed, self.settings.seed + trials)
            total = total + sum((one.noisy(seed) - one.exact) ** 2 for seed in seeds) / trials
        return np.nan_to_num(np.sqrt(total), nan=0.0, posinf=0.0)


def _rms(values: Any) -> float:
    return math.sqrt(float(np.dot(values, values)) / values.size) if values.size else 0.0


def _consumer(part: Consumer, output: TensorRef, context: ReadContext, settings: ReplaySettings) -> _Consumer:
    task = part.task
    assert task.forward is not None and task.forward_call is not None
    row = row_of(task.forward_call)
    if row is None or row.kind in STOPPED:
        raise RefusedRecord(f"the gradient of {task.operator.name} cannot be computed")
    if is_large(task):
        raise RefusedRecord(f"the product of {task.operator.name} is too large to compute its gradient")
    slots = [one.name for one in flat([*task.forward_call.args, *task.forward_call.kwargs.values()])
             if isinstance(one, Slot)]  # fmt: skip
    if slots.count(part.slot) != 1:
        raise RefusedRecord(f"the arguments of {task.operator.name} cannot be distinguished")
    place = slots.index(part.slot)
    work, gradient = gradient_by_place(task, place, context, settings)
    unsure: list[bool] = []
    back = _back(part, output, context, unsure)
    exact = back(gradient)
    unit = max((unit_of(one.dtype) for one in task.operator.tensors), default=0.0)
    low = next((one.dtype for one in task.forward.tensors if one.slot.startswith("output")), "")
    unit = max(unit, unit_of(low) if work.treated else 0.0)
    return _Consumer(part, work, place, back, exact, unit, any(unsure))


def _back(part: Consumer, output: TensorRef, context: ReadContext, unsure: list[bool]) -> Any:
    """The function from a gradient of the consumer's input to a flat gradient of the output. It appends to `unsure`
    whether equal rows may be permuted."""
    x = next(one for one in _forward(part).tensors if one.slot == part.slot)
    gap = part.gap
    if gap is not None and (gap.function in UNARY or gap.function in BINARY or gap.function.startswith(SCALE)):
        sources = [np.ravel(wide(one, context)) for one in part.sources]
        with np.errstate(all="ignore"):
            slope = applied(
                gap.function, DualNumpy, [Dual(one, 1.0 * (at in part.own)) for at, one in enumerate(sources)]
            )
        return lambda gradient: np.ravel(gradient) * slope.slope
    values = read(x, context)
    every = [output] if gap is None else [part.sources[at] for at in part.own]
    found = places_in(values, cast(read(every[0], context), x))
    if found is None or (found.share < 1 and gap is None):
        raise RefusedRecord(f"the function from it to {x.slot} of {part.task.call.name} is unknown")
    unsure.append(found.ambiguous)
    return lambda gradient: _scatter_to_origin(gradient, found, math.prod(output.shape))


def _scatter_to_origin(gradient: Any, found: Permutation, size: int) -> Any:
    """Add each element to its place of origin."""
    values = np.ravel(gradient)
    use = found.places >= 0
    signed = np.where(found.negated, -values, values)[use]
    return np.bincount(found.places[use], weights=signed, minlength=size)


def _is_sum_of_records(
    task: EdgeTask, tensor: TensorRef, actual: Array, context: ReadContext, settings: ReplaySettings
) -> bool:
    """Whether a large gradient is the sum of the recorded gradients of its consumers, within the rounding of the parts
    and of their sum: nothing needs to be computed then."""
    parts, units = [], []
    for part in task.parts:
        unsure: list[bool] = []
        recorded = _recorded_gradient(part, _back(part, task.tensor, context, unsure), context)
        if recorded is None or any(unsure):
            return False
        parts.append(recorded)
        units.append(max((unit_of(one.dtype) for one in part.task.operator.tensors), default=0.0))
    dtype = lookup(tensor.dtype)
    assert dtype is not None
    unit = max(unit_of(tensor.dtype), min(units))
    squares: Any = sum((own * one) ** 2 for own, one in zip(units, parts))
    for one in np.cumsum([np.abs(one) for one in parts], axis=0)[1:]:
        squares = squares + (unit * one) ** 2
    due = ErrorBudget(ROUNDING * np.sqrt(squares), "noise")
    row = evaluate_output(0, tensor.slot, actual.reshape(tensor.shape), sum(parts), dtype, due, settings.scale)
    return row.verdict is ReplayVerdict.CLEAN


def _recorded_gradient(part: Consumer, back: Callable[[Array], Array], context: ReadContext) -> Optional[Any]:
    """This gradient in the record of a consumer: the output in the same place if it has its shape, else the only output
    with this shape, else None."""
    x = next(tensor for tensor in _forward(part).tensors if tensor.slot == part.slot)
    alike = [tensor for tensor in part.task.outputs if tensor.shape == x.shape]
    own = [tensor for tensor in alike if tensor.slot.rpartition(":")[2] == x.slot.rpartition(":")[2]]
    chosen = own or (alike if len(alike) == 1 else [])
    return back(wide(chosen[0], context)) if chosen else None


def _missing_consumers(checker: _Checker, consumers: list[_Consumer]) -> str:
    """Names of consumers whose gradients are missing in the sum, "" for none."""
    if not 2 <= len(consumers) <= MOST_CONSUMERS:
        return ""
    for count in range(len(consumers) - 1, 0, -1):
        for subset in combinations(range(len(consumers)), count):
            if checker.fits(checker.row([consumers[at].exact for at in subset])):
                left = [one.part.task.operator.name for at, one in enumerate(consumers) if at not in subset]
                return " and ".join(left)
    return ""


def _factor(checker: _Checker, consumers: list[_Consumer]) -> float:
    """The factor from the sum to the recorded gradient, 0 if no factor fits."""
    size = float(np.dot(checker.total, checker.total))
    factor = float(np.dot(checker.actual, checker.total)) / size if size else 0.0
    if not factor or not math.isfinite(factor):
        return 0.0
    return factor if checker.fits(checker.row([factor * one.exact for one in consumers])) else 0.0


def _is_whole(factor: float) -> bool:
    """Whether a factor or its inverse is an integer, as several copies of a consumer, or several ranks, cause."""
    return any(abs(one - round(one)) < 1e-3 * abs(one) for one in (factor, 1 / factor))


def _explain_gradient(factor: float, checker: _Checker, row: ReplayedOutput) -> str:
    """The relation between the gradient and the sum."""
    if not checker.total.any():
        return "its consumers return zero"
    if factor:
        return f"it is {factor:.6g} times the sum"
    return f"it is the sum except in {row.where}" if row.where else ""


def _via(task: EdgeTask) -> str:
    """The functions from the output to the inputs of the consumers, in words."""
    names = [*dict.fromkeys(one.gap.function if one.gap is not None else "bit-equal" for one in task.parts)]
    words = ", ".join(names)
    return f"sum of {len(task.parts)}: {words}" if len(task.parts) > 1 else words


def _forward(part: Consumer) -> Any:
    assert part.task.forward is not None
    return part.task.forward
