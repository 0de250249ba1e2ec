"""Compare two operators by the shapes of their tensors, and infer shapes that a dump did not record.

A tensor without a recorded shape is a row of elements: it gets the shape of its partner, if the counts agree. A device
layout is undone if the partner's shape has exactly this many stored elements in only one way.
"""

from __future__ import annotations

import math
from typing import Optional

from npucmp.errors import UnsupportedError
from npucmp.model import Device, Operator, Pair, TensorRef
from npucmp.model.dtypes import lookup


def signature(operator: Operator) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Slots and shapes of an operator's tensors; empty for an operator without tensors."""
    return tuple((tensor.slot, tensor.shape) for tensor in operator.tensors)


def outputs(operator: Operator) -> tuple[tuple[int, ...], ...]:
    """Shapes of the outputs."""
    return tuple(tensor.shape for tensor in operator.tensors if tensor.is_output)


def output_shapes(operator: Operator) -> tuple[object, ...]:
    """The shapes that two partners have in common: those of the outputs, or of all tensors if no output was recorded,
    without axes of length 1. Empty if they are unknown."""
    output_tensors = [tensor for tensor in operator.tensors if tensor.is_output] or operator.tensors
    if any(tensor.layout not in ("", "ND") or not tensor.slot or tensor.is_unshaped for tensor in output_tensors):
        return ()
    return tuple(tuple(size for size in tensor.shape if size != 1) for tensor in output_tensors)


def same_but_for_rows(target: Operator, golden: Operator) -> bool:
    """Return whether each common slot has shapes that differ along at most one axis, and one of them has several axes:
    other rows were selected, or the batch differs."""
    golden_shapes = dict(signature(golden))
    common = [(shape, golden_shapes[slot]) for slot, shape in signature(target) if slot in golden_shapes]
    return any(len(shape) > 1 for shape, _ in common) and all(
        len(one) == len(other) and sum(a != b for a, b in zip(one, other)) <= 1 for one, other in common
    )


def same_shapes(target: Operator, golden: Operator) -> bool:
    """Return whether each common slot has one shape. Without common slots, neither operator may have tensors or the
    shapes of the outputs must agree. An unknown shape does not differ from any other."""
    golden_shapes = dict(signature(golden))
    common = [(shape, golden_shapes[slot]) for slot, shape in signature(target) if slot in golden_shapes]
    if not common:
        return (not target.tensors and not golden.tensors) or outputs(target) == outputs(golden)
    return all(a == b for a, b in common) or _same_common_shapes(target, golden)


def _same_common_shapes(target: Operator, golden: Operator) -> bool:
    by_slot = {tensor.slot: tensor for tensor in golden.tensors}
    both = [(tensor, by_slot[tensor.slot]) for tensor in target.tensors if tensor.slot in by_slot]
    return all(one.shape == other.shape or one.is_unshaped or other.is_unshaped for one, other in both)


def merge_leading_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of three axes with the first two merged: batch and sequence are one axis of tokens in vLLM. With more
    axes, the position of batch and sequence is unknown."""
    bare = _bare(shape)
    return (bare[0] * bare[1], bare[2]) if len(bare) == 3 else bare


def alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether two shapes are equal without axes of length 1, or after merging the first two axes of the longer
    one."""
    short, long = sorted((_bare(one), _bare(other)), key=len)
    return short == long or short == (math.prod(long[:2]), *long[2:])


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


_BLOCK = 32  # bytes of the innermost axis: definition: of the blocks in which devices store matrices
_ELEMENTS = 16  # elements of the innermost axis: definition: of the blocks of 16-bit types


def shape_pair(pair: Pair) -> Pair:
    """Return the pair with such tensors in the shape of their partner, or with the reason why they have none."""
    target, golden = pair.target, pair.golden
    if target is None or golden is None or not (target.is_unshaped or golden.is_unshaped):
        return pair
    if target.is_unshaped and golden.is_unshaped:
        if target.layout == golden.layout:
            return pair
        words = f"in {target.layout or 'plain order'}, the other in {golden.layout or 'plain order'}, and no file gives"
        return pair._replace(target=target._replace(problem=f"{words} a shape"))
    if target.is_unshaped:
        return pair._replace(target=_with_shape(target, golden))
    return pair._replace(golden=_with_shape(golden, target))


def _with_shape(one: TensorRef, other: TensorRef) -> TensorRef:
    if one.problem or other.problem or not other.slot or one.payload is None:
        return one
    count = one.shape[0]
    device: Optional[Device] = None
    if one.layout:
        device = _device(one, other, count)
        if device is None:
            return one._replace(problem=f"{count} elements in {one.layout}: no file gives their shape")
    elif math.prod(other.shape) != count:
        return one  # its number of elements is reported beside the partner's shape
    payload = one.payload._replace(shape=other.shape, device=device, unshaped=False)
    return one._replace(shape=other.shape, payload=payload)


def _device(one: TensorRef, other: TensorRef, count: int) -> Optional[Device]:
    """The device layout in which the partner's shape has `count` stored elements; None if none fits or several do."""
    from npucmp.dump.layouts import LAYOUTS, origins, stored_shape

    kind = lookup(one.dtype)
    orders = origins(one.layout) if one.layout in LAYOUTS and not other.layout else ()
    found = set()
    for order in orders:
        for block in {_ELEMENTS, _BLOCK // kind.itemsize if kind else _ELEMENTS}:
            try:
                stored = stored_shape(one.layout, order, other.shape, block)
            except UnsupportedError:
                continue
            if math.prod(stored) == count:
                found.add(Device(one.layout, stored, order))
    return found.pop() if len(found) == 1 else None
