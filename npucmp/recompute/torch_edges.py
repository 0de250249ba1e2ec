"""The gradient that reached an output is the sum of what its consumers hand back: computed in float64 from the
gradients that reached them, whether or not a record holds what they handed back. So it shows what lies between dumped
operators. Only child processes import this.

What does not fit is tried again with the recorded gradients of the consumers (a wrong one is their own fault, which is
told there), and without some of them (a tensor may have been detached). What does not fit then is broken if all
consumers are known, else unknown.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, NamedTuple, Optional

import numpy as np
import torch

from npucmp.dump.context import ReadContext
from npucmp.model import Edge, Held, Replayed, TensorRef
from npucmp.model.dtypes import ROUNDING, lookup
from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.data_flow import Consumer, EdgeTask
from npucmp.recompute.error_budget import MAX, MAX_16, RMS, RMS_16, Due, judged
from npucmp.recompute.gap_functions import BINARY, SCALE, UNARY, applied
from npucmp.recompute.gaps import cast
from npucmp.recompute.load_values import read
from npucmp.recompute.permutations import Permutation, places_in
from npucmp.recompute.rounding_noise import RoundingNoise
from npucmp.recompute.table import row_of
from npucmp.recompute.task import ReplaySettings, Task
from npucmp.recompute.torch_backward import given_to, gradients, saved_by
from npucmp.recompute.torch_bind_call import Bound, bind
from npucmp.recompute.torch_results import MORE, numpy_of, tensors_in, unit_of, wide
from npucmp.recompute.torch_sampled_matmul import product_of

SURE, MOST = 2.0, 1.5  # ratios above which the noise of the parts is measured, and measured again
ADDED = 2.0  # rms of what adding in the accumulator leaves, in its round-off; clean gradients have up to 3.7
FAR = 1e4  # times what rounding leaves: no noise does that
MANY = 6  # consumers of which sums without some are tried
STOPPED = ("random", "ranks", "dropout")  # kinds of the table whose gradient is not of the record alone


class _Consumer(NamedTuple):
    """One of those that read an output: its call, gradients and saved results, what brings a gradient of its input
    back to the output, and what that gives in float64."""

    part: Consumer
    bound: Bound
    given: list[Any]
    saved: list[Any]
    back: Any
    exact: Any
    unit: float
    is_unsure: bool

    def noisy(self, noise: RoundingNoise) -> Any:
        return self.back(_of_input(self.part, self.bound, self.given, self.saved, noise))


def edge(task: EdgeTask, context: ReadContext, settings: ReplaySettings) -> Edge:
    """What a gradient is. Raises RefusedRecord, and what the readers raise.

    Functions that make the same of the values at hand, as a relu and a cast do of what is positive, may have other
    gradients: where several fit, each is tried.
    """
    found = _edge(task, context, settings)
    others = [*dict.fromkeys(name for part in task.parts if part.gap is not None for name in part.gap.others)]
    for name in others if found.verdict is not Held.CLEAN else ():
        parts = tuple(
            part._replace(gap=part.gap._replace(function=name)) if part.gap and name in part.gap.others else part
            for part in task.parts
        )
        other = _edge(task._replace(parts=parts), context, settings)
        if other.verdict is Held.CLEAN:
            return other
    return found


def _edge(task: EdgeTask, context: ReadContext, settings: ReplaySettings) -> Edge:
    via = _via(task)
    order = task.task.operator.order
    found = Edge(order, task.slot, consumers=tuple(sorted({one.task.operator.order for one in task.parts})), via=via)
    if not task.parts:
        return found._replace(explanation=task.missing or "no operator that was dumped reads it")
    tensor = next(one for one in task.task.operator.tensors if one.slot == task.slot)
    dtype = lookup(tensor.dtype)
    actual = read(tensor, context).astype(np.float64).reshape(-1)
    if dtype is None or dtype.kind != "f" or math.prod(tensor.shape) != math.prod(task.tensor.shape):
        return found._replace(explanation="the gradient has another shape")
    consumers = [_consumer(one, task.tensor, context, settings) for one in task.parts]
    checker = _Checker(tensor, actual, consumers, settings)
    row = checker.row([one.exact for one in consumers])
    found = found._replace(ratio=row.rms_ratio, rel_l2_u=row.rel_l2_u)
    if row.nonfinite or not np.isfinite(actual).all():
        return found._replace(explanation="NaN or Inf, which kernels spread in their own ways")
    if checker.fits(row):
        return found._replace(verdict=Held.CLEAN)
    recorded = [_recorded(one, context) for one in consumers]
    if any(one is not None for one in recorded):
        other = checker.row([one.exact if own is None else own for one, own in zip(consumers, recorded)])
        if checker.fits(other):
            return found._replace(
                verdict=Held.CLEAN, explanation="what the records of its consumers hold adds up to it"
            )
    without = _without(checker, consumers)
    if without:
        return found._replace(explanation=f"it is the sum without {without}: detached there, or lost")
    factor = _factor(checker, consumers)
    if factor and not _is_whole(factor):  # nothing that was not dumped hands back just that
        return found._replace(verdict=Held.BROKEN, explanation=f"it is {factor:.6g} times the sum")
    if any(one.is_unsure for one in consumers):
        return found._replace(explanation="some of its rows are equal, and nobody can say which is which")
    if task.missing:
        return found._replace(explanation=task.missing)
    return found._replace(verdict=Held.BROKEN, explanation=_explained(factor, checker, row))


class _Checker:
    """Sums of gradients against the recorded one. What rounding of the parts leaves is enough for most; noise is only
    measured for what lies beyond it."""

    def __init__(self, tensor: TensorRef, actual: Any, consumers: list[_Consumer], settings: ReplaySettings) -> None:
        self.tensor, self.actual, self.consumers, self.settings = tensor, actual, consumers, settings
        self.unit = unit_of(tensor.dtype)
        self.total = sum(one.exact for one in consumers)
        self.sigma = self._rounding()
        self.trials = 0

    def row(self, parts: list[Any]) -> Replayed:
        """Of a sum; as sigma is of all parts, fewer may be off by as much."""
        row = self._row(sum(parts))
        for limit, trials in ((SURE, self.settings.trials), (MOST, self.settings.trials * MORE)):
            ratio = row.rms_ratio or 0.0
            if ratio > FAR or (self.fits(row) and ratio <= limit):
                break
            if self.trials < trials:
                self.trials = trials
                self.sigma = np.hypot(self._rounding(), self._noise(trials))
                row = self._row(sum(parts))
        return row

    def fits(self, row: Replayed) -> bool:
        low = self.unit > 2.0**-20
        most = (RMS_16 if low else RMS) * self.settings.scale, (MAX_16 if low else MAX) * self.settings.scale
        return not row.nonfinite and (row.rms_ratio or 0.0) <= most[0] and (row.max_ratio or 0.0) <= most[1]

    def _row(self, total: Any) -> Replayed:
        dtype = lookup(self.tensor.dtype)
        assert dtype is not None
        return judged(
            0, self.tensor.slot, self.actual.reshape(self.tensor.shape), total, dtype, Due(self.sigma, "noise")
        )

    def _rounding(self) -> Any:
        """Each part in the type of its consumer, their sums in that of the gradient."""
        squares = [(one.unit * one.exact) ** 2 for one in self.consumers]
        sums = np.cumsum([np.abs(one.exact) for one in self.consumers], axis=0)[1:]
        unit = max(self.unit, min(one.unit for one in self.consumers))
        of_sums = sum((ADDED * one.bound.accumulator * _rms(one.exact)) ** 2 for one in self.consumers)
        return np.sqrt(ROUNDING**2 * (sum(squares) + sum(((unit * one) ** 2 for one in sums), 0.0)) + of_sums)

    def _noise(self, trials: int) -> Any:
        total = 0.0
        for one in self.consumers:
            noises = (RoundingNoise(one.unit, one.bound.accumulator, self.settings.seed + at) for at in range(trials))
            total = total + sum((one.noisy(noise) - one.exact) ** 2 for noise in noises) / trials
        return np.nan_to_num(np.sqrt(total), nan=0.0, posinf=0.0)


def _rms(values: Any) -> float:
    return math.sqrt(float(np.dot(values, values)) / values.size) if values.size else 0.0


def _consumer(part: Consumer, output: TensorRef, context: ReadContext, settings: ReplaySettings) -> _Consumer:
    task = part.task
    assert task.forward is not None and task.forward_call is not None
    row = row_of(task.forward_call)
    if row is None or row.kind in STOPPED:
        raise RefusedRecord(f"the gradient of {task.operator.name} cannot be computed")
    if product_of(Task(task.forward, task.forward_call), row) is not None:
        raise RefusedRecord(f"the product of {task.operator.name} is too large for a gradient")
    bound = bind(task.forward, task.forward_call, row, context, settings.memory)
    given, saved = given_to(task, context), saved_by(task, bound, context)
    unsure: list[bool] = []
    back = _back(part, output, context, unsure)
    exact = back(_of_input(part, bound, given, saved))
    unit = max((unit_of(one.dtype) for one in task.operator.tensors), default=0.0)
    unit = max(unit, unit_of(bound.low) if bound.treated else 0.0)
    return _Consumer(part, bound, given, saved, back, exact, unit, any(unsure))


def _of_input(
    part: Consumer, bound: Bound, given: list[Any], saved: list[Any], noise: Optional[RoundingNoise] = None
) -> Any:
    """The gradient of the input."""
    every = tensors_in([bound.args, bound.kwargs])
    if len(every) != len(bound.dtypes):
        raise RefusedRecord(f"the arguments of {part.task.operator.name} cannot be told apart")
    wanted = dict(zip(bound.dtypes, every))[part.slot]
    if not wanted.is_floating_point():
        return torch.zeros(wanted.shape, dtype=torch.float64)
    found = gradients(bound, given, saved, noise, wanted)[-1]
    return torch.zeros_like(wanted) if found is None else found


def _back(part: Consumer, output: TensorRef, context: ReadContext, unsure: list[bool]) -> Any:
    """From a gradient of the consumer's input to one of the output, flat; told in `unsure` if equal rows may have
    changed places."""
    x = next(one for one in _forward(part).tensors if one.slot == part.slot)
    gap = part.gap
    if gap is not None and (gap.function in UNARY or gap.function in BINARY or gap.function.startswith(SCALE)):
        name, sources = gap.function, [wide(one, context) for one in part.sources]

        def through(gradient: Any) -> Any:
            leaves = [one.clone().requires_grad_() for one in sources]
            with torch.enable_grad():
                result = applied(name, torch, [one.reshape(-1) for one in leaves])
                own = torch.autograd.grad(result, leaves, gradient.reshape(-1), allow_unused=True)
            return sum(numpy_of(own[at]) for at in part.own)

        return through
    values = read(x, context)
    every = [output] if gap is None else [part.sources[at] for at in part.own]
    found = places_in(values, cast(read(every[0], context), x))
    if found is None or (found.share < 1 and gap is None):
        raise RefusedRecord(f"how {x.slot} of {part.task.call.name} follows from it is not known")
    unsure.append(found.ambiguous)
    return lambda gradient: _moved(gradient, found, math.prod(output.shape))


def _moved(gradient: Any, found: Permutation, size: int) -> Any:
    """Each element to where it came from."""
    flat = numpy_of(gradient)
    use = found.places >= 0
    signed = np.where(found.negated, -flat, flat)[use]
    return np.bincount(found.places[use], weights=signed, minlength=size)


def _recorded(one: _Consumer, context: ReadContext) -> Optional[Any]:
    """What the record of a consumer holds of this gradient: the output of the same place if it has its shape, else the
    only one that has."""
    x = next(tensor for tensor in _forward(one.part).tensors if tensor.slot == one.part.slot)
    alike = [tensor for tensor in one.part.task.outputs if tensor.shape == x.shape]
    own = [tensor for tensor in alike if tensor.slot.rpartition(":")[2] == x.slot.rpartition(":")[2]]
    chosen = own or (alike if len(alike) == 1 else [])
    return one.back(wide(chosen[0], context)) if chosen else None


def _without(checker: _Checker, consumers: list[_Consumer]) -> str:
    """Consumers whose gradients are not in the sum."""
    if not 2 <= len(consumers) <= MANY:
        return ""
    for count in range(len(consumers) - 1, 0, -1):
        for some in combinations(range(len(consumers)), count):
            if checker.fits(checker.row([consumers[at].exact for at in some])):
                left = [one.part.task.operator.name for at, one in enumerate(consumers) if at not in some]
                return " and ".join(left)
    return ""


def _factor(checker: _Checker, consumers: list[_Consumer]) -> float:
    """What the sum is multiplied by, 0 if by no number."""
    size = float(np.dot(checker.total, checker.total))
    factor = float(np.dot(checker.actual, checker.total)) / size if size else 0.0
    if not factor or not math.isfinite(factor):
        return 0.0
    return factor if checker.fits(checker.row([factor * one.exact for one in consumers])) else 0.0


def _is_whole(factor: float) -> bool:
    """As several copies of a consumer, or several ranks, would make it."""
    return any(abs(one - round(one)) < 1e-3 * abs(one) for one in (factor, 1 / factor))


def _explained(factor: float, checker: _Checker, row: Replayed) -> str:
    """What would make it of the sum."""
    if not checker.total.any():
        return "its consumers hand back zero"
    if factor:
        return f"it is {factor:.6g} times the sum"
    return f"it is the sum but for {row.where}" if row.where else ""


def _via(task: EdgeTask) -> str:
    """How the inputs of the consumers follow from the output."""
    names = [*dict.fromkeys(one.gap.function if one.gap is not None else "bit-equal" for one in task.parts)]
    words = ", ".join(names)
    return f"sum of {len(task.parts)}: {words}" if len(task.parts) > 1 else words


def _forward(part: Consumer) -> Any:
    assert part.task.forward is not None
    return part.task.forward
