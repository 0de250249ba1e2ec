"""Match operators by the values of their weights, for frameworks whose names have nothing in common (ATB); and match
products that one framework computes at once and the other separately (qkv and q, k, v; gate-up and gate, up).

By weights: a weight is identified by samples of its first and last rows, or by its recorded statistics, in its own
shape or transposed. A weight that consists of several weights of the other run, row by row from first to last, belongs
to a fused product. Only values decide. Operators that share one weight are matched by order, if both sides have equally
many.

Fused products: each part is compared with a view of the whole's tensors: nothing is copied. Outputs are cut along their
last axis, weights and biases along their first; the table gives the order. Values confirm a layout: samples of weights,
else of outputs, must have the direction of the part at both of its ends, in at least one module. A scaled or shifted
product still passes, interleaved heads do not. If values were kept and none agrees, nothing is matched. If only
statistics were kept, those of the parts are merged into statistics of the whole; statistics of a whole do not yield
those of a part.

Sources: vLLM's packed_modules_mapping, transformers, MindFormers, Megatron.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from npucmp.align.framework_names import WHOLES, NeutralOperator, executions
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import sliced
from npucmp.dump.readers.strides import c_strides, compact
from npucmp.model import Match, Operator, Statistics, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type
from npucmp.relations.frameworks.by_name.slots import ends_of, is_near, open_payload, partner_of, reshape_leading

FUSED_WEIGHTS_VIA = "parts"


class FusedGroup(NamedTuple):
    """A whole and its parts. `turned` is True if the whole belongs to the golden run."""

    whole: Operator
    parts: tuple[Operator, ...]
    turned: bool
    names: tuple[str, ...]


def groups_by_name(target: Sequence[NeutralOperator], golden: Sequence[NeutralOperator]) -> Iterator[FusedGroup]:
    """Yield wholes and parts by the names of modules with one parent, executions in order."""
    for transpose_weight, here, there in ((False, target, golden), (True, golden, target)):
        known = executions([one for one in there if one.is_module])
        for (place, what, phase), wholes in executions([one for one in here if one.is_module]).items():
            if not place or phase != "forward" or (place, what, phase) in known:
                continue
            for names in WHOLES.get(place[-1], ()):
                parts_by_name = [known.get(((*place[:-1], name), what, phase), []) for name in names]
                if all(len(each) == len(wholes) for each in parts_by_name):
                    for whole, *parts in zip(wholes, *parts_by_name):
                        yield FusedGroup(
                            whole.operator, tuple(one.operator for one in parts), transpose_weight, tuple(names)
                        )


def matches_of(groups: Sequence[FusedGroup], context: ReadContext) -> tuple[list[Match], list[FusedGroup]]:
    """Return groups as matches, and the groups without evidence that they belong together."""
    layouts: dict[tuple[str, ...], list[tuple[FusedGroup, Optional[bool]]]] = defaultdict(list)
    for group in groups:
        layouts[group.names].append((group, agrees(group, context)))
    found: list[Match] = []
    unsure: list[FusedGroup] = []
    for candidates in layouts.values():
        names_known = {known for _, known in candidates}
        for group, _ in candidates:
            fits = [] if True not in names_known and False in names_known else [*_matches(group, context)]
            found += fits
            unsure += [] if fits else [group]
    return found, unsure


def why_not(group: FusedGroup) -> str:
    """The reason why a group may not belong together."""
    sizes = [next((one.shape[-1] for one in op.tensors if one.slot == "output:0" and one.shape), 0)
             for op in (group.whole, *group.parts)]  # fmt: skip
    if sizes[0] != sum(sizes[1:]):
        return f"{' + '.join(map(str, sizes[1:]))} columns do not add up to {sizes[0]}"
    return "its values are not the concatenation of the parts"


def agrees(group: FusedGroup, context: ReadContext) -> Optional[bool]:
    """Return whether samples of the weights, or of the outputs, match the parts; None if no values are available."""
    for role in ("param", "output"):
        found = [
            is_near(one, other, context)
            for slot, whole in _slots(group.whole, role)
            for one, other in zip(*_cut(group, slot, whole, context))
        ]
        decided = [one for one in found if one is not None]
        if decided:
            return any(decided)
    return None


def _slots(operator: Operator, role: str) -> list[tuple[str, TensorRef]]:
    """The tensors that are cut: the parameters and the first output."""
    return [(one.slot, one) for one in operator.tensors if one.slot == "output:0" or one.slot.startswith("param:")
            if one.slot.startswith(role)]  # fmt: skip


def _cut(
    group: FusedGroup, slot: str, whole: TensorRef, context: ReadContext
) -> tuple[list[TensorRef], list[TensorRef]]:
    """Views of a tensor of the whole and the tensors of the parts; empty if their sizes do not fit."""
    parts = [next((one for one in part.tensors if one.slot == slot), None) for part in group.parts]
    known = [one for one in parts if one is not None]
    if len(known) < len(parts):
        return [], []
    axis = len(whole.shape) - 1 if slot.startswith("output") else 0
    views = views_of(whole, [one.shape for one in known], axis, context)
    return (views, known) if views else ([], [])


def views_of(whole: TensorRef, shapes: Sequence[tuple[int, ...]], axis: int, context: ReadContext) -> list[TensorRef]:
    """Consecutive views of a tensor along an axis, in the sizes of the parts; empty if these do not fit."""
    payload = open_payload(whole, context)
    if (
        not whole.shape
        or payload is None
        or payload.device
        or (payload.parts and not payload.made_by)
        or payload.dataset
    ):
        return []
    kind = lookup(payload.dtype)
    last = axis == len(whole.shape) - 1
    sizes = [shape[-1] if last else shape[0] for shape in shapes if shape]
    rest = {_rows(shape) if last else shape[1:] for shape in shapes}
    own = _rows(whole.shape) if last else whole.shape[1:]
    if kind is None or kind.bits or len(sizes) < len(shapes) or sum(sizes) != whole.shape[axis] or rest != {own}:
        return []
    strides = payload.strides or c_strides(payload.shape)
    found, start = [], 0
    for size in sizes:
        shape = (*whole.shape[:axis], size, *whole.shape[axis + 1 :])
        if payload.made_by:
            view = sliced(payload, axis, start, start + size)
        else:
            offset = payload.offset + start * strides[axis] * kind.itemsize
            view = payload._replace(shape=shape, strides=compact(shape, strides), offset=offset)
        label = f"{whole.label} [axis {axis}: {start} to {start + size}]"
        found.append(whole._replace(shape=shape, payload=view, label=label, statistics=None, checksum=""))
        start += size
    return found


def _matches(group: FusedGroup, context: ReadContext) -> Iterator[Match]:
    """Match the whole with all parts at once, or each part with its share of the whole."""
    cuts = {slot: _cut(group, slot, whole, context) for slot, whole in _slots(group.whole, "")}
    views = cuts.get("output:0", ([], []))[0]
    if group.turned:
        for at, part in enumerate(group.parts if views else ()):
            tensors = [each[at].in_slot(slot) for slot, (each, _) in cuts.items() if each]
            tensors += [one for one in group.whole.tensors if one.slot.startswith("input")]
            partner = partner_of(part, group.whole._replace(tensors=tuple(tensors)), context)
            yield Match(part, partner, FUSED_WEIGHTS_VIA, CONFIDENCE, (group.whole.order,), True)
        return
    first, last = group.parts[0], group.parts[-1]
    ins = [one for one in group.whole.tensors if one.slot.startswith("input")]
    theirs = [one for one in first.tensors if one.slot.startswith("input")]
    outs: list[TensorRef] = []
    for slot, (each, parts) in cuts.items():
        for name, one, other in zip(group.names, each, parts):
            outs.append(one._replace(slot=f"{slot}.{name}"))
            theirs.append(reshape_leading(other.in_slot(f"{slot}.{name}"), one.shape, context))
    if not views:
        joined = _merged_statistics(group)
        if joined is None:
            return
        outs.append(joined[0])
        theirs.append(joined[1])
    target = group.whole._replace(tensors=(*ins, *outs))
    name = " + ".join(part.name for part in group.parts)
    golden = partner_of(target, last._replace(name=name, tensors=tuple(theirs)), context)
    yield Match(target, golden, FUSED_WEIGHTS_VIA, CONFIDENCE, tuple(part.order for part in group.parts), True)


def _rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The number of rows that are cut along the last axis."""
    return (math.prod(shape[:-1]),)


def _merged_statistics(group: FusedGroup) -> Optional[tuple[TensorRef, TensorRef]]:
    """The whole's output, and a tensor with the merged statistics of all parts; None if statistics are missing."""
    whole, *parts = [next((one for one in op.tensors if one.slot == "output:0"), None)
                     for op in (group.whole, *group.parts)]  # fmt: skip
    known = [one for one in parts if one is not None and one.statistics is not None]
    if whole is None or whole.statistics is None or len(known) < len(parts) or not whole.shape:
        return None
    shapes = [one.shape for one in known]
    if {*map(_rows, shapes)} != {_rows(whole.shape)} or sum(shape[-1] for shape in shapes if shape) != whole.shape[-1]:
        return None
    recorded = [one.statistics for one in known if one.statistics]
    counts = [math.prod(shape) for shape in shapes]
    if any(None in one for one in recorded):
        return None
    every: Any = recorded
    together = Statistics(
        max(one.max for one in every),
        min(one.min for one in every),
        sum(one.mean * count for one, count in zip(every, counts)) / max(1, sum(counts)),
        math.hypot(*(one.norm for one in every)),
    )
    label = f"{' + '.join(one.label for one in known)} [axis {len(whole.shape) - 1}]"
    rounding = max(one.rounding for one in known)
    return whole, known[0]._replace(shape=whole.shape, statistics=together, checksum="", file="", payload=None,
                                    label=label, rounding=rounding)  # fmt: skip


VIA = "weights"
CONFIDENCE = 0.9  # confidence: chosen: of operators with equal weights
SAMPLE_DISTANCE = 0.02  # relative distance of two samples: chosen: 16 bits change a weight by 4e-3
FIGURES = 10  # times: chosen: statistics of whole weights are so much nearer than samples
FLAT = 1e-3  # of the largest value: chosen: values in so narrow a range are those of a constant
_FEWEST = 8  # elements: chosen: so many identify a weight


class WeightRead(NamedTuple):
    """A weight that an operator reads. `turned` is True if its rows are the columns of the recorded tensor."""

    owner: NeutralOperator
    tensor: TensorRef
    ends: Optional[tuple[Any, Any]]
    is_transposed: bool = False

    @property
    def operator_with_weight(self) -> Operator:
        """The operator with the weight in this shape."""
        operator, slot = self.owner.operator, self.tensor.slot
        tensors = (self.tensor if one.slot == slot else one for one in operator.tensors)
        return operator._replace(tensors=tuple(tensors)) if self.is_transposed else operator

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape


class WeightPair(NamedTuple):
    """Two operators that share one weight, and its slots."""

    here: WeightRead
    there: WeightRead


def weights_of(operators: Sequence[NeutralOperator], context: ReadContext) -> list[WeightRead]:
    """The inputs of operators that may be weights: parameters of modules, and inputs of functions in the slots of
    weights. For unknown types, all floats. `same` prefers a function to the module around it."""
    found: list[WeightRead] = []
    for one in operators:
        operator = one.operator
        places = {f"input:{place}" for place in op_type(operator.op_type).parameters}
        for tensor in operator.tensors if one.phase == "forward" else ():
            role, kind = tensor.slot.partition(":")[0], lookup(tensor.dtype)
            meant = role == "param" or (role == "input" and not one.is_module and (tensor.slot in places or not places))
            if meant and kind is not None and kind.kind == "f" and math.prod(tensor.shape) >= _FEWEST:
                found.append(WeightRead(one, tensor, ends_of(tensor._replace(slot="param:"), context)))
    return found


def transpose_weight(weight: WeightRead, context: ReadContext) -> Optional[WeightRead]:
    """The transposed weight; None if it cannot be transposed."""
    payload = open_payload(weight.tensor, context)
    if payload is None or len(payload.shape) != 2 or payload.device or payload.parts or payload.dataset:
        return None
    strides = (payload.strides or c_strides(payload.shape))[::-1]
    shape = payload.shape[::-1]
    view = weight.tensor._replace(shape=shape, payload=payload._replace(shape=shape, strides=compact(shape, strides)))
    return weight._replace(tensor=view, ends=ends_of(view._replace(slot="param:"), context), is_transposed=True)


def same(weights: Sequence[WeightRead], others: Sequence[WeightRead], context: ReadContext) -> Iterator[WeightPair]:
    """Match operators that share one weight, equally many on both sides, in order."""
    by_shape: dict[object, list[WeightRead]] = defaultdict(list)
    for other in others:
        by_shape[other.shape].append(other)
    partners: dict[tuple[int, ...], list[WeightRead]] = defaultdict(list)
    rivals: dict[tuple[int, ...], list[WeightRead]] = {}
    for one in weights:
        for weight in (one, transpose_weight(one, context) if len(one.shape) == 2 else None):
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


def _innermost(near: list[WeightRead], to: NeutralOperator) -> list[WeightRead]:
    """Among operators that read one weight, prefer the same type, then functions over the modules around them."""
    near = [one for one in near if one.owner.neutral.op_type == to.neutral.op_type] or near
    return [one for one in near if not one.owner.is_module] or near


def fused(
    weights: Sequence[WeightRead], others: Sequence[WeightRead], is_golden: bool, context: ReadContext
) -> list[FusedGroup]:
    """Return operators whose weight consists of several weights of the other run, row after row. If `is_golden`,
    these operators belong to the golden run."""
    by_width: dict[int, list[WeightRead]] = defaultdict(list)
    for other in others:
        if len(other.shape) == 2:
            by_width[other.shape[1]].append(other)
    found = []
    for one in weights:
        for weight in (one, transpose_weight(one, context)) if len(one.shape) == 2 else ():
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
    activations = [one for one in operator.tensors if one.slot == "input:0" or one.is_output]
    return operator._replace(tensors=(*activations, weight.tensor.in_slot("param:weight")))


def _chain(weight: WeightRead, others: Sequence[WeightRead], context: ReadContext) -> list[WeightRead]:
    """The weights that form this one from its first row to its last; empty if there is no way, or more than one."""
    payload, kind = open_payload(weight.tensor, context), lookup(weight.tensor.dtype)
    if payload is None or kind is None or kind.bits or payload.device or payload.dataset:
        return []
    found: list[WeightRead] = []
    start, rows = 0, weight.shape[0]
    while start < rows:
        near = []
        for size in {other.shape[0] for other in others if other.shape[0] <= rows - start}:
            part = sliced(payload, 0, start, start + size)
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
        return all(_distance(a, b) < SAMPLE_DISTANCE for a, b in zip(one.ends, other.ends))
    recorded = one.tensor.statistics, other.tensor.statistics
    if one.is_transposed or recorded[0] is None or recorded[1] is None or None in recorded[0] or None in recorded[1]:
        return False
    size = max(map(abs, (recorded[0].max or 0.0, recorded[0].min or 0.0)))
    scales = (size, size, size, abs(recorded[0].norm or 0.0))
    return recorded[0].max != recorded[0].min and all(
        a is not None and b is not None and abs(a - b) <= SAMPLE_DISTANCE / FIGURES * scale
        for a, b, scale in zip(recorded[0], recorded[1], scales)
    )


def _distance(a: Any, b: Any) -> float:
    """Relative distance of two samples; infinite for constants, which identify nothing."""
    if len(a) != len(b) or a.max() - a.min() <= FLAT * abs(a).max():
        return math.inf
    return float(math.sqrt(((a - b) ** 2).sum() / max((a * a).sum(), (b * b).sum())))
