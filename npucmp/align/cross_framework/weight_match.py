"""Matcher by the values of weights, for names of two frameworks that have nothing in common: ATB.

A weight is identified by samples of its first and last rows, or by its recorded statistics, in its own shape or
transposed. A weight that consists of several weights of the other run, row by row from first to last, belongs to a
fused product. Only values decide. Operators that share one weight are matched by order, if both sides have equally
many.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from npucmp.align.cross_framework.aliases import Plain
from npucmp.align.cross_framework.fused_weights import FusedGroup
from npucmp.align.cross_framework.sampling import ends_of, opened
from npucmp.dump.context import ReadContext
from npucmp.dump.readers.strides import c_strides, compact
from npucmp.model import Operator, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type

VIA = "weights"
NEAR = 0.02  # relative distance of two samples: 16 bits change a weight by 4e-3
_FEWEST = 8  # elements that identify a weight


class WeightRead(NamedTuple):
    """A weight that an operator reads. `turned` is True if its rows are the columns of the recorded tensor."""

    owner: Plain
    tensor: TensorRef
    ends: Optional[tuple[Any, Any]]
    turned: bool = False

    @property
    def as_read(self) -> Operator:
        """The operator with the weight in this shape."""
        operator, slot = self.owner.operator, self.tensor.slot
        tensors = (self.tensor if one.slot == slot else one for one in operator.tensors)
        return operator._replace(tensors=tuple(tensors)) if self.turned else operator

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape


class WeightPair(NamedTuple):
    """Two operators that share one weight, and its slots."""

    here: WeightRead
    there: WeightRead


def weights_of(some: Sequence[Plain], context: ReadContext) -> list[WeightRead]:
    """The inputs of operators that may be weights: parameters of modules, and inputs of functions in the slots of
    weights. For unknown types, all floats. `same` prefers a function to the module around it."""
    found: list[WeightRead] = []
    for one in some:
        operator = one.operator
        places = {f"input:{place}" for place in op_type(operator.op_type).parameters}
        for tensor in operator.tensors if one.phase == "forward" else ():
            role, kind = tensor.slot.partition(":")[0], lookup(tensor.dtype)
            meant = role == "param" or (role == "input" and not one.is_module and (tensor.slot in places or not places))
            if meant and kind is not None and kind.kind == "f" and math.prod(tensor.shape) >= _FEWEST:
                found.append(WeightRead(one, tensor, ends_of(tensor._replace(slot="param:"), context)))
    return found


def turned(weight: WeightRead, context: ReadContext) -> Optional[WeightRead]:
    """The transposed weight; None if it cannot be transposed."""
    payload = opened(weight.tensor, context)
    if payload is None or len(payload.shape) != 2 or payload.device or payload.parts or payload.dataset:
        return None
    strides = (payload.strides or c_strides(payload.shape))[::-1]
    shape = payload.shape[::-1]
    view = weight.tensor._replace(shape=shape, payload=payload._replace(shape=shape, strides=compact(shape, strides)))
    return weight._replace(tensor=view, ends=ends_of(view._replace(slot="param:"), context), turned=True)


def same(some: Sequence[WeightRead], others: Sequence[WeightRead], context: ReadContext) -> Iterator[WeightPair]:
    """Match operators that share one weight, equally many on both sides, in order."""
    by_shape: dict[object, list[WeightRead]] = defaultdict(list)
    for other in others:
        by_shape[other.shape].append(other)
    partners: dict[tuple[int, ...], list[WeightRead]] = defaultdict(list)
    rivals: dict[tuple[int, ...], list[WeightRead]] = {}
    for one in some:
        for weight in (one, turned(one, context) if len(one.shape) == 2 else None):
            near = [other for other in by_shape.get(weight.shape, ()) if _is_near(weight, other)] if weight else []
            if weight is not None and near:
                near = _innermost(near, weight.owner)
                key = tuple(other.owner.operator.order for other in near)
                partners[key].append(weight)
                rivals[key] = near
                break
    for key, mine in partners.items():
        if len(mine) == len(key):
            yield from map(WeightPair, mine, rivals[key])


def _innermost(near: list[WeightRead], to: Plain) -> list[WeightRead]:
    """Among operators that read one weight, prefer the same type, then functions over the modules around them."""
    for wanted in (
        [one for one in near if one.owner.neutral.op_type == to.neutral.op_type],
        [one for one in near if not one.owner.is_module],
    ):
        near = wanted or near
    return near


def fused(
    some: Sequence[WeightRead], others: Sequence[WeightRead], is_golden: bool, context: ReadContext
) -> list[FusedGroup]:
    """Return operators whose weight consists of several weights of the other run, row after row. If `is_golden`,
    these operators belong to the golden run."""
    by_width: dict[int, list[WeightRead]] = defaultdict(list)
    for other in others:
        if len(other.shape) == 2:
            by_width[other.shape[1]].append(other)
    found = []
    for one in some:
        for weight in (one, turned(one, context)) if len(one.shape) == 2 else ():
            chain = _chain(weight, by_width.get(weight.shape[1], []), context) if weight is not None else []
            if weight is not None and len(chain) > 1:
                names = [part.owner.place[-1] if part.owner.place else part.owner.what for part in chain]
                parts = tuple(_with(part.owner.operator, part) for part in chain)
                found.append(FusedGroup(_with(weight.owner.operator, weight), parts, is_golden, _unlike(names)))
                break
    return found


def _unlike(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name if names.count(name) == 1 else f"{name}_{at}" for at, name in enumerate(names))


def _with(operator: Operator, weight: WeightRead) -> Operator:
    """The operator with the weight in a module's slot. Only its first other input is kept."""
    kept = [one for one in operator.tensors if one.slot == "input:0" or one.is_output]
    return operator._replace(tensors=(*kept, weight.tensor.in_slot("param:weight")))


def _chain(weight: WeightRead, others: Sequence[WeightRead], context: ReadContext) -> list[WeightRead]:
    """The weights that form this one from its first row to its last; empty if there is no way, or more than one."""
    payload, kind = opened(weight.tensor, context), lookup(weight.tensor.dtype)
    if payload is None or kind is None or kind.bits:
        return []
    step = (payload.strides or c_strides(payload.shape))[0] * (lookup(payload.dtype) or kind).itemsize
    found: list[WeightRead] = []
    start, rows = 0, weight.shape[0]
    while start < rows:
        near = []
        for size in {other.shape[0] for other in others if other.shape[0] <= rows - start}:
            part = payload._replace(
                shape=(size, payload.shape[1]), offset=payload.offset + start * step, strides=payload.strides
            )
            view = weight.tensor._replace(slot="param:", shape=part.shape, payload=part)
            mine = weight._replace(tensor=view, ends=ends_of(view, context))
            near += [other for other in others if other.shape[0] == size and _is_near(mine, other)]
        near = _innermost(near, weight.owner)
        if len(near) != 1:
            return []
        found += near
        start += near[0].shape[0]
    return found


def _is_near(one: WeightRead, other: WeightRead) -> bool:
    if one.ends is not None and other.ends is not None:
        return all(_distance(a, b) < NEAR for a, b in zip(one.ends, other.ends))
    recorded = one.tensor.statistics, other.tensor.statistics
    if one.turned or recorded[0] is None or recorded[1] is None or None in recorded[0] or None in recorded[1]:
        return False
    size = max(map(abs, (recorded[0].max or 0.0, recorded[0].min or 0.0)))
    scales = (size, size, size, abs(recorded[0].norm or 0.0))
    return recorded[0].max != recorded[0].min and all(
        a is not None and b is not None and abs(a - b) <= NEAR / 10 * scale
        for a, b, scale in zip(recorded[0], recorded[1], scales)
    )


def _distance(a: Any, b: Any) -> float:
    """Relative distance of two samples; infinite for constants, which identify nothing."""
    if len(a) != len(b) or a.max() - a.min() <= 1e-3 * abs(a).max():
        return math.inf
    return float(math.sqrt(((a - b) ** 2).sum() / max((a * a).sum(), (b * b).sum())))
