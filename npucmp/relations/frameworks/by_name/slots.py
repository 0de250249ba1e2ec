"""The golden operator in the terms of its partner from another framework: slots, parameter names, shapes; and the views
and samples of tensors for it.

Tensors are partners if the signatures give them the same name; integers match integers only. The remaining tensors are
paired by shape if exactly one of each side has it. If one framework merges batch and sequence into one axis, the golden
tensor is viewed in the target's shape: as many elements, in the same order. All other tensors have no partner.

A sample distinguishes tensors without reading them whole: a few rows and columns at both ends of the axis that is cut.
It raises no error: an unreadable tensor has no sample, and the measurement reports the reason.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy as np

from npucmp.align.framework_names import parameter
from npucmp.align.msprobe_mapping import Api
from npucmp.align.shape_match import alike, merge_leading_axes
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import header
from npucmp.dump.readers.assembly import sliced
from npucmp.dump.readers.strides import c_strides
from npucmp.dump.readers.values import blocks
from npucmp.errors import if_unreadable
from npucmp.model import Operator, Payload, TensorRef
from npucmp.model.arguments import tensor_name
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type

SAME = 0.9  # cosine of two samples of one tensor, even if scaled: chosen: of two tensors it is near 0
OPERANDS = 3  # tensors: definition: query, key and value
_ROWS = 8  # rows of a sample, and as many columns at either end: work


def reshape_leading(tensor: TensorRef, shape: tuple[int, ...], context: ReadContext) -> TensorRef:
    """Return a tensor in a shape with merged or split leading axes; unchanged if the shapes differ in any other way."""
    if tensor.shape == shape or not alike(tensor.shape, shape) or tensor.device or tensor.problem:
        return tensor
    if not tensor.file and tensor.payload is None:
        return tensor._replace(shape=shape)
    found = open_payload(tensor, context)
    if found is None:
        return tensor
    plain = not (found.strides or found.parts or found.dataset)
    payload = found._replace(shape=shape) if plain else found._replace(shape=shape, parts=(found,), strides=(), axis=0)
    return tensor._replace(shape=shape, payload=payload)


@if_unreadable(None)
def open_payload(tensor: TensorRef, context: ReadContext) -> Optional[Payload]:
    """The payload of a tensor, whose file is opened if necessary; None if it does not match the dump. MindSpore stores
    16-bit floats in 32 bits."""
    if tensor.problem or (tensor.payload is None and not tensor.file):
        return None
    found = tensor.payload or header(tensor.encoding, tensor.file, context)
    kinds = lookup(found.dtype), lookup(tensor.dtype)
    widened = kinds[0] and kinds[1] and kinds[0].kind == kinds[1].kind == "f" and kinds[0].itemsize > kinds[1].itemsize
    return found if found.shape == tensor.shape and (found.dtype == tensor.dtype or widened) else None


def is_near(one: TensorRef, other: TensorRef, context: ReadContext) -> Optional[bool]:
    """Return whether two tensors have one direction at both ends; None if this is unknown."""
    found = [ends_of(each, context) for each in (one, reshape_leading(other, one.shape, context))]
    if found[0] is None or found[1] is None:
        return None
    return all(_cosine(a, b) > SAME for a, b in zip(found[0], found[1]))


@if_unreadable(None)
def ends_of(tensor: TensorRef, context: ReadContext) -> Optional[tuple[Any, Any]]:
    """Samples of the first and the last rows of a weight, or columns of an output."""

    payload = open_payload(tensor, context)
    kind = lookup(payload.dtype) if payload is not None else None
    if payload is None or kind is None or kind.bits or payload.device or payload.dataset:
        return None
    if payload.parts and not payload.made_by:
        return None
    if kind.kind != "f" or 0 in payload.shape or not payload.shape:
        return None
    found = [np.concatenate([*blocks(view, context=context)]) for view in _corners(tensor, payload, kind.itemsize)]
    with np.errstate(all="ignore"):
        first, last = (np.nan_to_num(one.astype(np.float64), posinf=0, neginf=0) for one in found)
    return first, last


def _corners(tensor: TensorRef, payload: Payload, itemsize: int) -> Iterator[Payload]:
    """A few rows and columns at the beginning and at the end of the axis that is cut."""
    shape, strides = payload.shape, payload.strides or c_strides(payload.shape)
    axis = 0 if tensor.slot.startswith("param") else len(shape) - 1
    few = [min(size, _ROWS) if at in (0, len(shape) - 1) else 1 for at, size in enumerate(shape)]
    for start in (0, shape[axis] - few[axis]):
        if payload.made_by:
            view = payload
            for at, size in enumerate(few):
                first = start if at == axis else 0
                view = sliced(view, at, first, first + size)
            yield view
            continue
        yield payload._replace(
            shape=tuple(few), strides=strides, offset=payload.offset + start * strides[axis] * itemsize
        )


def _cosine(a: Any, b: Any) -> float:
    if len(a) != len(b):
        return 0.0
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0.0 else 0.0


Key = Callable[[TensorRef], object]


def partner_of(target: Operator, golden: Operator, context: ReadContext, api: Optional[Api] = None) -> Operator:
    """Return the golden operator with tensors in the target's slots and shapes. `api` gives the slots that belong
    together."""
    left, right = [*target.tensors], [*golden.tensors]
    taken: dict[int, TensorRef] = {}  # place in the target → tensor of the golden
    for one, other in _residuals(target, golden):
        taken[left.index(one)] = right.pop(right.index(other))
    rules: list[tuple[Key, Key, bool]] = [
        (lambda one: _golden_slot(target, golden, one, api), lambda one: _slot_name(golden, one), False),
        (lambda one: None if _is_named_by_file(one, api) else _shape_of(one), _shape_of, True),
        (lambda one: _operand_number(target, one), lambda one: _operand_number(golden, one), False),
    ]
    for of_target, of_golden, alone in rules:
        for place, one in enumerate(left):
            key = of_target(one)
            found = [other for other in right if key is not None and of_golden(other) == key]
            rivals = Counter(of_target(each) for at, each in enumerate(left) if at not in taken)
            fits = bool(found) and place not in taken and (not alone or (len(found) == 1 and rivals[key] == 1))
            if fits and (alone or _is_alike(one, found[0])):
                taken[place] = found[0]
                right.remove(found[0])
    for place, one in enumerate(left):  # tensors of one name but different shapes: the difference is reported
        same = [other for other in right if _slot_name(golden, other) == _golden_slot(target, golden, one, api)]
        if place not in taken and same and _is_whole(one) == _is_whole(same[0]):
            taken[place] = same[0]
            right.remove(same[0])
    if not target.path:
        _swap(left, taken, context)
    tensors = [reshape_leading(other.in_slot(left[at].slot), left[at].shape, context) for at, other in taken.items()]
    slots = {one.slot for one in left}
    rest = [one.in_slot(f"{one.slot} of the golden") if one.slot in slots else one for one in right]
    return golden._replace(tensors=(*tensors, *rest), arguments=_arguments(target, golden))


def _swap(left: Sequence[TensorRef], taken: dict[int, TensorRef], context: ReadContext) -> None:
    """Exchange two operands of one shape if their values show that they are in reverse order on the other side."""
    reads = [at for at in taken if left[at].slot.startswith("input")]
    for a, b in combinations(reads, 2):
        if left[a].shape == left[b].shape and alike(taken[a].shape, taken[b].shape):
            crossed = is_near(left[a], taken[b], context) and is_near(left[b], taken[a], context)
            if crossed and is_near(left[a], taken[a], context) is False:
                taken[a], taken[b] = taken[b], taken[a]


def _slot_name(operator: Operator, tensor: TensorRef) -> Optional[str]:
    return tensor_name(operator, parameter(tensor.slot)) or None


def _operand_number(operator: Operator, tensor: TensorRef) -> Optional[int]:
    """The number of query, key and value, in which order attention reads them as a function and as a module."""
    reads = [one.slot for one in operator.tensors if one.slot.startswith("input") and not _is_whole(one)]
    is_attention = op_type(operator.op_type).name == "attention" and len(reads) >= OPERANDS
    return reads.index(tensor.slot) if is_attention and tensor.slot in reads[:OPERANDS] else None


def _golden_slot(target: Operator, golden: Operator, tensor: TensorRef, api: Optional[Api]) -> Optional[str]:
    """The name of a tensor's partner on the golden side; None if it has none."""
    slot = api.slots.get(tensor.slot) if api is not None else None
    if slot is not None:
        return tensor_name(golden, parameter(slot))
    return None if _is_named_by_file(tensor, api) else _slot_name(target, tensor)


def _is_named_by_file(tensor: TensorRef, api: Optional[Api]) -> bool:
    """Return whether a file names all tensors of this role that have a partner."""
    return api is not None and tensor.slot.partition(":")[0] in api.roles


def _shape_of(tensor: TensorRef) -> Optional[object]:
    role = tensor.slot.partition(":")[0]
    return (
        (role, merge_leading_axes(tensor.shape), _is_whole(tensor))
        if role in ("input", "output") and tensor.shape
        else None
    )


def _is_alike(one: TensorRef, other: TensorRef) -> bool:
    return _is_whole(one) == _is_whole(other) and alike(one.shape, other.shape)


def _is_whole(tensor: TensorRef) -> bool:
    """Return whether a tensor has integers or truth values."""
    kind = lookup(tensor.dtype)
    return kind is not None and kind.kind in "iub"


def adds_up(target: Operator, golden: Operator) -> bool:
    """Return whether one of two modules may be a norm that also adds its input to the residual sum."""
    return op_type(target.op_type).has("normalises") or op_type(golden.op_type).has("normalises")


def has_residual_sum(target: Operator, golden: Operator) -> bool:
    """Return whether one of two norms returns the residual sum that the other one reads."""
    return any(_residuals(target, golden))


def _residuals(target: Operator, golden: Operator) -> Iterator[tuple[TensorRef, TensorRef]]:
    """Pair the residual sum. Norms of vLLM also add their input to it and return both; the other framework's norm reads
    it."""
    if not adds_up(target, golden):
        return
    slots = [{tensor.slot: tensor for tensor in one.tensors} for one in (target, golden)]
    for mine, theirs, is_turned in ((slots[0], slots[1], False), (slots[1], slots[0], True)):
        sums, reads = mine.get("output:1"), [slot for slot in theirs if slot.startswith("input")]
        if sums is not None and "output:1" not in theirs and len(reads) == 1 and _is_alike(sums, theirs[reads[0]]):
            yield (theirs[reads[0]], sums) if is_turned else (sums, theirs[reads[0]])


def _arguments(target: Operator, golden: Operator) -> dict[str, object]:
    """The golden's numeric arguments that both operators have, in the target's slots; all others are the target's
    own."""
    values = {tensor_name(golden, slot): value for slot, value in golden.arguments.items()}
    found = {slot: values.get(tensor_name(target, slot), value) for slot, value in target.arguments.items()}
    return {
        slot: value if type(value) in (int, float) and type(own) in (int, float) and value != own else own
        for (slot, value), own in zip(found.items(), target.arguments.values())
    }
