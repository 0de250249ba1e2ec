"""Differences of shapes and inputs that follow from values. The network computes those values, so they are no setup of
the run: nonzero finds other rows, topk takes other experts.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import AbstractSet, Iterator, Sequence

from npucmp.comparability.answers import AlignedRuns, AlignedStep
from npucmp.model import Pair
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import is_gradient


def own_difference(both: AlignedRuns, one: AlignedStep) -> float:
    """The place, in the order of the pairs, of the first forward operator whose outputs differ although it reads the
    same, or that makes a mask or an index in one run alone; infinite if there is none, or if no inputs were
    recorded."""
    alone = min((pair.order for pair in one.pairs if _chooses_alone(pair)), default=math.inf)
    for order, members in _operators(one):
        read, written = _sides(members)
        differs = any(_sizes(pair) or both.agree(pair) is False for pair in written)
        if order > alone:
            return alone
        if differs and read and all(both.are_equal(pair) for pair in read):
            return order
    return alone


def shapes_by_value(both: AlignedRuns, one: AlignedStep) -> AbstractSet[int]:
    """The places of forward operators whose shapes differ because values do: they read other values in equal shapes,
    follow an operator that differs by itself, or have pairs of sizes that such an operator wrote."""
    start, sizes, found = own_difference(both, one), set[tuple[int, int]](), set[int]()
    for order, members in _operators(one):
        read, written = _sides(members)
        entering = {size for pair in read for size in _sizes(pair)}
        leaving = {size for pair in written for size in _sizes(pair)}
        reads_others = not entering and any(both.agree(pair) is False for pair in read)
        if order > start or reads_others or (entering and entering <= sizes):
            sizes |= entering | leaving
            if leaving:
                found.add(order)
    return found


def _operators(one: AlignedStep) -> Iterator[tuple[int, Sequence[Pair]]]:
    """The forward operators of both runs with the pairs of their tensors, in order."""
    both = (pair for pair in one.pairs if pair.target is not None and pair.golden is not None)
    calls = sorted((pair for pair in both if not is_gradient(pair.operator)), key=lambda pair: pair.order)
    for order, members in groupby(calls, key=lambda pair: pair.order):
        yield order, [*members]


def _chooses_alone(pair: Pair) -> bool:
    """Whether a forward operator of one run alone made a mask or an index from what it reads."""
    operator = pair.operator
    if (pair.target_op is not None and pair.golden_op is not None) or is_gradient(operator):
        return False
    tensor = pair.golden if pair.target is None else pair.target
    row = lookup(tensor.dtype) if tensor is not None else None
    reads = any(not one.is_output for one in operator.tensors)
    return pair.slot.startswith("output:") and reads and row is not None and row.kind in "biu"


def _sides(members: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    written = [pair for pair in members if pair.slot.startswith("output:")]
    return [pair for pair in members if not pair.slot.startswith("output:")], written


def _sizes(pair: Pair) -> set[tuple[int, int]]:
    """The sizes, of both runs, of the axes that differ; the numbers of axes if these differ."""
    target, golden = bare_shape(pair.target), bare_shape(pair.golden)
    if len(target) != len(golden):
        return {(len(target), len(golden))}
    return {(a, b) for a, b in zip(target, golden) if a != b}


def bare_shape(tensor: object) -> tuple[int, ...]:
    """The shape of a tensor without axes of length one; () without a tensor."""
    return tuple(size for size in getattr(tensor, "shape", ()) if size != 1)
