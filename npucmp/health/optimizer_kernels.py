"""Parameters in dumps of kernels. If the optimizer is a recorded operator, a single step shows how parameters move.

An optimizer works in place, so its dumped first input is the parameter after the step. The parameter before the step
is an input of a forward operator of the same step. Among the inputs of equal shape, the nearest by value is taken.
MindSpore also dumps parameters by name at the end of a step: the record with equal bits gives the name.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.health.detectors import StepChange, wide
from npucmp.health.facts import OptimizerUpdate, Parameter, Tensor
from npucmp.measure.tensor_stats import StatsTask
from npucmp.model import Operator, Payload, Run, TensorRef
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import Held, forward_of, kind_of

if TYPE_CHECKING:
    from npucmp.measure.kernel.range_stats import Array

AFTER, GRADIENT, MOMENT, RATE = ("var", "variable"), ("grad", "gradient"), ("accum", "accumulation"), (
    "lr", "learning_rate", "alpha"
)  # fmt: skip


class Update(NamedTuple):
    """One call of an optimizer: the parameter after it, the gradient, the moment and the learning rate. `is_plain`: the
    formula is w - rate · moment, or w - rate · gradient if it has no moment."""

    operator: Operator
    after: TensorRef
    gradient: Optional[TensorRef]
    moment: Optional[TensorRef]
    rate: Optional[TensorRef]
    is_plain: bool


class UpdateGroup(NamedTuple):
    """The updates of one shape, and the candidates for their parameters before the step."""

    updates: tuple[Update, ...]
    candidates: tuple[Held, ...]

    def tensors(self, nothing: TensorRef) -> list[TensorRef]:
        """After, gradient and moment of each update; then the candidates."""
        sides = [(one.after, one.gradient or nothing, one.moment or nothing) for one in self.updates]
        return [tensor for side in sides for tensor in side] + [tensor for _, tensor in self.candidates]

    def work(self, nothing: TensorRef) -> StatsTask:
        return StatsTask(tuple(self.tensors(nothing)), {"steps": partial(NearestCandidate, updates=len(self.updates))})


def groups_of(run: Run) -> list[UpdateGroup]:
    """Return the updates of a run by shape. Groups without candidates are dropped; without an optimizer there are
    none."""
    by_shape: dict[tuple[int, ...], list[Update]] = {}
    for operator in run.operators:
        if op_type_of(operator).has("updates"):
            found = _update(operator)
            if found is not None:
                by_shape.setdefault(found.after.shape, []).append(found)
    read = [held for one in forward_of(run) for held in _parameters_read(one)]
    groups = [
        UpdateGroup(tuple(updates), tuple(held for held in read if held[1].shape == shape))
        for shape, updates in by_shape.items()
    ]
    return [one for one in groups if one.candidates]


def _update(operator: Operator) -> Optional[Update]:
    slots = {one.slot: one for one in operator.tensors}
    names = operator.attributes.get("input_names")
    words = [str(name) for name in names] if isinstance(names, (tuple, list)) else []
    named = {word: slots.get(f"input:{place}") for place, word in enumerate(words)}

    def tensor_named(*spellings: str) -> Optional[TensorRef]:
        return next((named[word] for word in spellings if named.get(word) is not None), None)

    first = tensor_named(*AFTER) or slots.get("input:0")
    if first is None or kind_of(first.dtype) != "f":
        return None
    own = [one for one in operator.tensors if one.slot.startswith("input:") and one.shape == first.shape]
    gradient = tensor_named(*GRADIENT) or (own[-1] if len(own) > 1 else None)
    moment = tensor_named(*MOMENT)
    others = [one for one in own if one not in (first, gradient, moment)]
    plain = bool(words) and not others and not operator.attributes.get("use_nesterov")
    written = slots.get("output:0")
    after = written if written is not None and written.shape == first.shape else first
    return Update(operator, after, gradient, moment, tensor_named(*RATE), plain and gradient is not None)


def _parameters_read(operator: Operator) -> Iterator[Held]:
    """Yield the tensors that a forward operator may read as parameters."""
    kind = op_type_of(operator)
    places = {*kind.parameters, *((1,) if kind.has("contracts") else ())}
    for tensor in operator.tensors:
        if tensor.slot in {f"input:{place}" for place in places} and kind_of(tensor.dtype) == "f" and tensor.shape:
            yield operator, tensor


class NearestCandidate:
    """For each update, find the candidate nearest to its result, and the sums of the step between them."""

    def __init__(self, payloads: Sequence[Optional[Payload]], updates: int) -> None:
        self.updates, self.candidates = updates, len(payloads) - 3 * updates
        self.has = [one is not None for one in payloads]
        self.sums = np.zeros((updates, self.candidates, 9))  # n, |w|, |d|, d², d·g, d·m, g², m², w²

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        arrays = [None if block is None else wide(block) for block in blocks]
        for k in range(self.updates):
            after, gradient, moment = arrays[3 * k : 3 * k + 3]
            for c, before in enumerate(arrays[3 * self.updates :]):
                if after is None or before is None:
                    continue
                with np.errstate(all="ignore"):
                    d = after - before
                    g = np.zeros_like(d) if gradient is None else gradient
                    m = np.zeros_like(d) if moment is None else moment
                    sizes = len(d), np.abs(before).sum(), np.abs(d).sum()
                    self.sums[k, c] += (*sizes, d @ d, d @ g, d @ m, g @ g, m @ m, before @ before)

    def result(self) -> list[Optional[tuple[int, tuple[float, ...]]]]:
        """(index of the candidate, sums) of each update; None if no candidate has finite sums."""
        made: list[Optional[tuple[int, tuple[float, ...]]]] = []
        for k in range(self.updates):
            known = [(float(self.sums[k, c, 3]), c) for c in range(self.candidates) if self.sums[k, c, 0]]
            finite = [one for one in known if math.isfinite(one[0])]
            made.append((min(finite)[1], tuple(map(float, self.sums[k, min(finite)[1]]))) if finite else None)
        return made


def parameters_of(
    step: int, group: UpdateGroup, found: Sequence[Any], tensor: Callable[[Held], Tensor], names: Mapping[object, str]
) -> Iterator[Parameter]:
    """Yield the parameters of a group in one step; `names` maps dtype, shape and bits to names."""
    for update, nearest in zip(group.updates, found):
        if nearest is None:
            continue
        at, (count, size, moved, squares, along_g, along_m, gg, mm, ww) = nearest
        operator, before = group.candidates[at]
        after = tensor((update.operator, update.after))
        length = math.sqrt(squares * gg)
        move = StepChange(squares == 0, size / count, moved / count, -along_g / length if length > 0 else None)
        gradient = tensor((update.operator, update.gradient)) if update.gradient is not None else None
        rate = tensor((update.operator, update.rate)).figures.constant if update.rate is not None else None
        known = names.get((after.dtype, after.shape, after.figures.bits))
        along, own = (along_m, mm) if update.moment is not None else (along_g, gg)
        residual = None
        if rate is not None and update.is_plain and ww:
            residual = math.sqrt(max(squares + 2 * rate * along + rate * rate * own, 0.0) / ww)
        yield Parameter(
            known or f"{operator.name} {before.slot}",
            op_type_of(operator),
            operator.order,
            True,
            (tensor((operator, before)),),
            (gradient,),
            ((step, step, move),),
            known is not None,
            (OptimizerUpdate(step, update.operator, rate, residual),),
        )


def parameter_names(run: Run, tensor: Callable[[Held], Tensor]) -> dict[object, str]:
    """Names of parameters that are dumped by name, by dtype, shape and bits: records of a single input tensor. Bits
    that occur under two names are left out."""
    found: dict[object, str] = {}
    for one in run.operators:
        if len(one.tensors) == 1 and not one.tensors[0].is_output and not is_gradient(one):
            held = tensor((one, one.tensors[0]))
            key = held.dtype, held.shape, held.figures.bits
            found[key] = "" if key in found else one.name
    return {key: name for key, name in found.items() if name}
