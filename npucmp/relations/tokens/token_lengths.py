"""Lengths of requests and padding as a run records them: masks of (batch, sequence), lengths, cumulative lengths."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Iterator, NamedTuple, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.errors import if_unreadable
from npucmp.model import Run, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.relations.held_values import Values
from npucmp.relations.token_records import IDS, MASK, POSITIONS, is_layout, record_of
from npucmp.relations.tokens.token_axes import TokenShape, is_float
from npucmp.relations.tokens.token_rows import row_values
from npucmp.relations.tokens.token_tensors import TokenSide, tensors_of

MOST = 1 << 24  # elements: work
HALF = 0.5  # share of rows: definition: most rows of a causal mask see nothing behind them
FEWEST = 4  # numbers: chosen: fewer count places by chance
MASKED = -1.0  # value: definition: an additive mask has 0 for a token and a large negative number for padding


class Recorded(NamedTuple):
    """The records of the first step of a run on its requests.

    named   for each token, lane by lane, whether it is one and not padding, by a tensor that is called a mask of
            attention or padding; None without one
    lengths lists of lengths, whose sum is the number of tokens or which fit the lanes
    """

    named: Optional[Any]
    lengths: tuple[tuple[int, ...], ...]


def recorded_lengths(side: TokenSide) -> Recorded:
    """The masks and lengths of the first step."""

    named, lengths = None, []
    shape = side.shapes[0]
    counted: list[tuple[int, ...]] = []
    for values in _argument_lengths(side.runs[0]):
        found = _lengths(values, shape)
        lengths += [found] if found and found not in lengths else []
    for role, tensor in _numbers(side):
        is_mask = role == MASK and shape.has_batch and _may_mask(tensor.shape, shape)
        is_place = role in (POSITIONS, "") and math.prod(tensor.shape) == shape.size
        if not is_mask and not is_place and len(tensor.shape) != 1:
            continue
        values = _values(side, tensor)
        if values is None:
            continue
        real = _mask(values, tensor, shape) if is_mask else None
        if real is not None and (named is None or (named.all() and not real.all())):
            named = real
        if is_place and (role == POSITIONS or counts_requests(values.reshape(-1))):
            counted += filter(None, [_counted(values, shape)])
        elif len(tensor.shape) == 1 and (role or not is_place):  # a number of each token is no length
            found = _lengths(values, shape)
            lengths += [found] if found and found not in lengths else []
    if named is not None and side.size > shape.size:  # padding of later steps is not recorded
        named = np.concatenate([named, np.ones(side.size - shape.size, bool)])
    return Recorded(named, tuple(dict.fromkeys([*lengths, *counted])))


def recorded_ids(run: Run, context: ReadContext) -> list[int]:
    """All ids of a step: a tensor that is called so, or the integers of which an operator makes activations; of several
    those of the most kinds, as a rank with a part of a vocabulary looks up fewer."""

    side = TokenSide((run,), (), Values(context))
    named = [tensor for role, tensor in _numbers(side) if role == IDS]
    looked_up = [
        tensor
        for operator in run.operators
        if not any(is_float(tensor) and not tensor.is_output for tensor in operator.tensors)
        and any(is_float(tensor) and tensor.is_output for tensor in operator.tensors)
        for tensor in operator.tensors
        if tensor.slot.startswith("input") and record_of(operator, tensor) is None
    ]
    read = [values for tensor in [*named, *looked_up] if (values := _values(side, tensor)) is not None]
    values = max(read, key=lambda one: len(np.unique(one)), default=None)
    return [*map(int, values.reshape(-1))] if values is not None else []


def recorded_positions(side: TokenSide) -> Optional[Any]:
    """The positions of all tokens, lane by lane, step by step; None if a step does not record them. Without a tensor
    that is called so, those of an operator that read numbers which count the places of requests in the first step."""

    found = []
    place: Optional[tuple[str, str]] = None  # operator and slot of positions without a name
    for run, shape in zip(side.runs, side.shapes):
        own = replace(side, runs=(run,), shapes=(shape,))
        fitting = [(key, role, tensor) for key, role, tensor in _placed_numbers(own)
                   if role in (POSITIONS, "") and math.prod(tensor.shape) == shape.size]  # fmt: skip
        read = (_values(own, tensor) for _, role, tensor in fitting if role == POSITIONS)
        values = next((each for each in read if each is not None), None)
        for key, role, tensor in fitting if values is None else ():
            known = _values(own, tensor) if not role and place in (None, key) else None
            if known is not None and (place == key or counts_requests(known.reshape(-1))):
                values, place = known, key
                break
        if values is None:
            return None
        is_turned = shape.is_turned and values.shape == shape.sizes
        found.append((values.T if is_turned else values).reshape(-1).astype(np.int64))
    return np.concatenate(found)


def counts_requests(numbers: Any) -> bool:
    """Whether numbers count from 0 the places of requests that stand one behind the other."""

    if numbers.dtype.kind not in "iu" or len(numbers) < FEWEST or numbers[0] != 0:
        return False
    starts = numbers[1:][np.diff(numbers.astype(np.int64)) != 1]
    return bool((starts == 0).all()) and len(starts) <= len(numbers) // 2


def _argument_lengths(run: Run) -> Iterator[Any]:
    """Yield the lists of lengths that operators got as numbers: `actual_seq_qlen` of npu_fusion_attention."""

    seen = set()
    for operator in run.operators:
        lists: dict[str, list[int]] = {}
        for slot, value in operator.arguments.items():
            name, _, number = slot.rpartition(".")
            if number.isdecimal() and isinstance(value, int) and is_layout(name.partition(":")[2]):
                lists.setdefault(name, []).append(value)
        for numbers in map(tuple, lists.values()):
            if numbers not in seen:
                seen.add(numbers)
                yield np.array(numbers)


def _numbers(side: TokenSide) -> Iterator[tuple[str, TensorRef]]:
    """Yield what they record, and the tensors that are inputs or saved records: integers, truth values and additive
    masks, each file once."""
    return ((role, tensor) for _, role, tensor in _placed_numbers(side))


def _placed_numbers(side: TokenSide) -> Iterator[tuple[tuple[str, str], str, TensorRef]]:
    """Yield the same with the operator and slot of each."""
    seen = set()
    for operator, _, tensor in tensors_of(side.runs[0]):
        kind = lookup(tensor.dtype)
        record = record_of(operator, tensor)
        is_input = record is not None or tensor.slot.startswith("input")
        if kind is None or not is_input or (tensor.file, tensor.payload) in seen:
            continue
        if kind.kind in "iub" or len(tensor.shape) == 4:
            seen.add((tensor.file, tensor.payload))
            yield (operator.name, tensor.slot), record.role if record is not None else "", tensor


def _may_mask(shape: tuple[int, ...], tokens: TokenShape) -> bool:
    """Whether a shape is (batch, sequence), (batch, 1, 1, sequence) or (batch, 1, sequence, sequence)."""
    first, second = tokens.sizes
    if shape in ((first, second), (second, first)):
        return True
    batch, places = (
        (second, first) if len(shape) == 4 and shape[0] == second and shape[-1] == first else (first, second)
    )
    return len(shape) == 4 and shape[:2] == (batch, 1) and shape[2] in (1, places) and shape[3] == places


@if_unreadable(None)
def _values(side: TokenSide, tensor: TensorRef) -> Optional[Any]:
    payload = side.values.payload(tensor)
    if payload is None or math.prod(tensor.shape) > MOST:
        return None
    return row_values(payload, side.values.context).reshape(tensor.shape)


def _mask(values: Any, tensor: TensorRef, shape: TokenShape) -> Optional[Any]:
    """Whether each token is one, lane by lane; None for values that are no mask of padding at one end."""

    kind = lookup(tensor.dtype)
    if values.ndim == 4:
        own = values[:, 0]
        queries, places = own.shape[1:]  # the last tokens ask
        later = np.triu(np.ones((queries, places), bool), 1 + places - queries)  # behind a token, which does not see it
        if kind is not None and kind.kind == "f":
            own = own > MASKED
        elif later.any() and (own[:, later] != 0).mean() > (own[:, ~later] != 0).mean():  # 1 is masked
            own = own == 0
        seen = own != 0
        ahead = (seen & later).any(2)  # rows of padding, in which nothing is masked
        seen[ahead if ahead.mean() < HALF else np.zeros_like(ahead)] = False
        real = seen.any(1)  # a window hides the first tokens from the last
    else:
        if not np.isin(values, (0, 1)).all():
            return None
        real = values != 0
        real = real.T if shape.is_turned and real.shape == shape.sizes else real
    if real.shape != (shape.lanes, shape.places):
        return None
    changes = np.abs(np.diff(real.astype(np.int8), axis=1)).sum(1)
    ends = real[:, 0] | real[:, -1]
    return real.reshape(-1) if ends.all() and (changes <= 1).all() else None


def _lengths(values: Any, shape: TokenShape) -> tuple[int, ...]:
    """Lengths of requests; () for other numbers."""

    if values.dtype.kind not in "iu" or not 1 <= len(values) <= shape.size:
        return ()
    numbers = values.astype(np.int64)
    if len(numbers) > 1 and numbers[0] == 0 and (np.diff(numbers) > 0).all() and numbers[-1] <= shape.size:
        found = tuple(map(int, np.diff(numbers)))
        return found if shape.has_batch or sum(found) == shape.size else ()
    if (numbers < 1).any():
        return ()
    if len(numbers) > 1 and (np.diff(numbers) > 0).all() and numbers[-1] == shape.size and not shape.has_batch:
        return tuple(map(int, np.diff(numbers, prepend=0)))  # the ends of requests
    fits = (
        len(numbers) == shape.lanes and numbers.max() == shape.places
        if shape.has_batch
        else numbers.sum() == shape.size
    )
    return tuple(map(int, numbers)) if fits else ()


def _counted(positions: Any, shape: TokenShape) -> tuple[int, ...]:
    """Lengths of the requests of a packed run, which end where positions do not count on; () for a single request, and
    for positions of a batch."""

    if positions.dtype.kind not in "iu" or shape.has_batch:
        return ()
    starts = np.nonzero(np.diff(positions.reshape(-1).astype(np.int64)) != 1)[0] + 1
    bounds = [0, *map(int, starts), shape.size]
    return tuple(stop - start for start, stop in zip(bounds, bounds[1:])) if len(starts) else ()
