"""Tensors of two operators that correspond, but are no contents: ids, masks, constants, single numbers.

Equal tensors of this kind do not pair their operators. Once operators are paired, they are compared: with a tensor
of equal values, or with the only one that is left of this size and kind in an operator of one type. If operators of one
type read the same, outputs that are contents are compared too, though their values differ.
"""

from __future__ import annotations

import math
from typing import Optional, Sequence

from npucmp.model import TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.relation import SAME_ORDER, AxisOrder
from npucmp.relations.frameworks.contents.axis_orders import possible_orders, without_units
from npucmp.relations.frameworks.contents.content import FEWEST
from npucmp.relations.frameworks.contents.content_graph import ContentGraph
from npucmp.relations.frameworks.contents.content_pairs import ContentPairs
from npucmp.relations.frameworks.contents.operator_draft import OperatorDraft

EQUAL = 1e-6  # relative error: chosen: float32 constants of two frameworks


def pair_leftovers(
    draft: OperatorDraft, target: ContentGraph, golden: ContentGraph, used: set[tuple[int, str]], pairs: ContentPairs
) -> None:
    """Pair the leftover tensors of an operator with those of its partner, and add them to `used`."""
    for written in (False, True):
        mine = [
            one
            for one in draft.operator.tensors
            if one.is_output == written and one.slot not in draft.partners and _is_dull(target, draft.place, one)
        ]
        theirs = [
            one
            for one in golden.operators[draft.golden].tensors
            if one.is_output == written and (draft.golden, one.slot) not in used and _is_dull(golden, draft.golden, one)
        ]
        _pair_equal(draft, mine, theirs, used, pairs)
        if target.type_at(draft.place) == golden.type_at(draft.golden):
            _pair_last(draft, mine, theirs, used)
            if written and not draft.open_inputs and draft.partners:
                _pair_outputs(draft, target, golden, used)


def _pair_outputs(draft: OperatorDraft, target: ContentGraph, golden: ContentGraph, used: set[tuple[int, str]]) -> None:
    """Pair outputs of one slot and shape of operators that read the same: their values differ, so that they are no
    content of both runs."""
    theirs = {one.slot: one for one in golden.operators[draft.golden].tensors if one.is_output}
    for tensor in draft.operator.tensors:
        other = theirs.get(tensor.slot)
        if other is None or tensor.slot in draft.partners or tensor.slot in draft.exact or tensor.shape != other.shape:
            continue
        if (draft.place, tensor.slot) in target.content_of and (draft.golden, other.slot) not in used:
            _take(draft, tensor, other, "the same output of operators that read the same", used)


def _is_dull(graph: ContentGraph, place: int, tensor: TensorRef) -> bool:
    return (place, tensor.slot) not in graph.content_of and bool(tensor.slot) and 0 not in tensor.shape


def _pair_equal(
    draft: OperatorDraft,
    mine: list[TensorRef],
    theirs: list[TensorRef],
    used: set[tuple[int, str]],
    pairs: ContentPairs,
) -> None:
    for tensor in [*mine]:
        for other in theirs:
            order = _equal_order(tensor, other, pairs)
            if order is not None:
                _take(draft, tensor, other, "equal values", used, order)
                mine.remove(tensor)
                theirs.remove(other)
                break


def _equal_order(tensor: TensorRef, other: TensorRef, pairs: ContentPairs) -> Optional[AxisOrder]:
    """The order of axes in which two tensors are equal, first the same; None if they differ."""
    if math.prod(tensor.shape) != math.prod(other.shape):
        return None
    shapes = without_units(tensor.shape), without_units(other.shape)
    orders = [SAME_ORDER, *possible_orders(*shapes)] if math.prod(tensor.shape) >= FEWEST else [SAME_ORDER]
    return next((order for order in orders if pairs.are_equal(tensor, other, EQUAL, order)), None)


def _pair_last(
    draft: OperatorDraft, mine: Sequence[TensorRef], theirs: Sequence[TensorRef], used: set[tuple[int, str]]
) -> None:
    for tensor in mine:
        fitting = [one for one in theirs if _form(one) == _form(tensor)]
        rivals = [one for one in mine if _form(one) == _form(tensor)]
        if len(fitting) == len(rivals) == 1:
            _take(draft, tensor, fitting[0], "the only tensor left of this size in both operators", used)


def _form(tensor: TensorRef) -> tuple[int, Optional[str]]:
    kind = lookup(tensor.dtype)
    return math.prod(tensor.shape), "i" if kind is not None and kind.kind in "iu" else kind.kind if kind else None


def _take(
    draft: OperatorDraft,
    tensor: TensorRef,
    other: TensorRef,
    reason: str,
    used: set[tuple[int, str]],
    order: AxisOrder = SAME_ORDER,
) -> None:
    draft.exact[tensor.slot] = other, reason, order
    used.add((draft.golden, other.slot))
