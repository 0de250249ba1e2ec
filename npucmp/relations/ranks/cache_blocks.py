"""Paged caches whose blocks lie in other places of the pool: the same tokens, compared by the tables of both runs.

An operator that reads a block table reads of the pool only the blocks that the table names, in its order, as far as the
recorded lengths go. These are compared; all other memory of a pool may hold anything. The tables, and the slots into
which tokens are written, belong to the layout of their own run. All outputs are compared.
"""

from __future__ import annotations

import math
import re
from itertools import groupby
from typing import Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import joined, sliced
from npucmp.errors import if_unreadable
from npucmp.model import Pair, Payload, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.relation import BlockRelation
from npucmp.relations.held_values import Values
from npucmp.relations.token_records import LAYOUT, SLOTS, TABLE, record_of

POOL = re.compile(r"cache|kv|buffer|pool|key|value", re.IGNORECASE)  # definition: names of the inputs of attention
FEWEST = 3  # axes: definition: blocks, tokens of a block, values
_PAIR = 2  # keys and values in one tensor: definition: an axis in front of the blocks


class _Requests(NamedTuple):
    """The blocks of each request, in the order of its tokens, and its number of tokens in the cache."""

    blocks: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]


def by_cache_blocks(pairs: Sequence[Pair], context: ReadContext) -> Sequence[Pair]:
    """Return the pairs, of which pools of caches are read by the tables of their operators."""
    places = {
        pair.order
        for pair in pairs
        if not pair.slot.startswith("output") and _role(pair) in (TABLE, SLOTS) and pair.target is not None
    }
    if not places:
        return pairs
    values = Values(context)
    found: list[Pair] = []
    for order, group in groupby(pairs, key=lambda pair: pair.order):
        own = [*group]
        found += _of_operator(own, values) if order in places else own
    return found


def _role(pair: Pair) -> str:
    if pair.golden is None or pair.golden_op is None:
        return ""
    record = record_of(pair.golden_op, pair.golden)
    return record.role if record is not None else ""


def _of_operator(group: Sequence[Pair], values: Values) -> Iterator[Pair]:
    table = next((pair for pair in group if _role(pair) == TABLE and pair.target is not None), None)
    sides = [_requests(group, table, of_target, values) for of_target in (True, False)] if table is not None else []
    differ = {pair.slot: _differs(pair, values) for pair in group if _role(pair) in (TABLE, SLOTS)}
    is_moved = any(differ.values())
    for pair in group:
        if differ.get(pair.slot):
            yield _as_layout(pair)
            continue
        may_be_pool = pair.target is not None and pair.golden is not None and _is_pool(pair, table is None)
        if not may_be_pool or not (table is None or all(sides)):
            yield pair
            continue
        read = None
        if table is not None and sides[0] is not None and sides[1] is not None:
            read = _by_table(pair, sides[0], sides[1], values)
        yield read if read is not None else _as_layout(pair) if is_moved else pair


def _requests(group: Sequence[Pair], table: Pair, of_target: bool, values: Values) -> Optional[_Requests]:
    """The requests of one side by its table and lengths; None if they cannot be read."""

    tensor = table.target if of_target else table.golden
    entries = values.array(tensor) if tensor is not None else None
    if entries is None or entries.ndim not in (1, 2) or not entries.size:
        return None
    entries = entries.reshape(-1, entries.shape[-1]).astype(np.int64)
    lengths: tuple[int, ...] = ()
    for pair in group:
        other = pair.target if of_target else pair.golden
        if _role(pair) != LAYOUT or other is None or math.prod(other.shape) != len(entries):
            continue
        read = values.array(other)
        if read is not None and (read > 0).all():
            lengths = max(lengths, tuple(map(int, read.reshape(-1))))
    return _Requests(tuple(tuple(map(int, row)) for row in entries), lengths)


def _differs(pair: Pair, values: Values) -> bool:
    if pair.target is None or pair.golden is None:
        return False
    x, y = values.array(pair.target), values.array(pair.golden)
    return x is not None and y is not None and (x.shape != y.shape or bool((x != y).any()))


def _is_pool(pair: Pair, needs_name: bool) -> bool:
    """Whether an input may be a pool: floats of at least three axes, by its name a cache, unless no input has a
    name."""
    assert pair.golden is not None and pair.target is not None
    kind = lookup(pair.golden.dtype)
    word = pair.slot.partition(":")[2]
    is_named = bool(POOL.search(f"{word} {pair.golden.label}"))
    is_input = pair.slot.startswith("input") and (is_named or (not needs_name and word.isdecimal()))
    is_value = kind is not None and kind.kind == "f" and len(pair.golden.shape) >= FEWEST
    return is_input and is_value and len(pair.target.shape) == len(pair.golden.shape)


def _by_table(pair: Pair, target: _Requests, golden: _Requests, values: Values) -> Optional[Pair]:
    """The pair with the tokens of the requests alone; None if the tensor is no pool of their blocks."""
    assert pair.golden is not None and pair.target is not None
    for axis in (0, 1):
        if axis == 1 and pair.golden.shape[0] != _PAIR:
            continue
        sides = [_gathered(tensor, own, axis, values)
                 for tensor, own in ((pair.target, target), (pair.golden, golden))]  # fmt: skip
        first, second = sides
        if first is not None and second is not None and first.shape == second.shape:
            relation = BlockRelation(first.shape[axis], len(golden.blocks))
            return pair._replace(
                target=_with_payload(pair.target, first)._replace(relation=relation),
                golden=_with_payload(pair.golden, second),
            )
    return None


def _with_payload(tensor: TensorRef, payload: Payload) -> TensorRef:
    return tensor._replace(shape=payload.shape, payload=payload, statistics=None, checksum="", source="", layout="")


@if_unreadable(None)
def _gathered(tensor: TensorRef, requests: _Requests, axis: int, values: Values) -> Optional[Payload]:
    """The tokens of all requests of a pool, whose blocks are an axis; None if it has no such blocks."""
    payload = values.payload(tensor)
    if payload is None or payload.device or payload.parts or payload.dataset or payload.made_by or payload.strides:
        return None
    count, size = payload.shape[axis : axis + 2]
    named = [blocks[: -(-length // size)] for blocks, length in zip(requests.blocks, requests.lengths)]
    if not named or any(len(blocks) * size < length for blocks, length in zip(named, requests.lengths)):
        return None
    if not all(0 <= block < count for blocks in named for block in blocks):
        return None
    flat = payload._replace(shape=(*payload.shape[:axis], count * size, *payload.shape[axis + 2 :]))
    parts = [
        sliced(flat, axis, start, stop)
        for blocks, length in zip(named, requests.lengths)
        for start, stop in _slots(blocks, length, size)
    ]
    return joined(parts, axis)


def _slots(blocks: Sequence[int], length: int, size: int) -> list[tuple[int, int]]:
    """The places of the tokens of a request in a pool of blocks of a size, as few ranges as possible."""
    found: list[tuple[int, int]] = []
    for number in range(-(-length // size)):
        start = blocks[number] * size
        stop = start + min(size, length - number * size)
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def _as_layout(pair: Pair) -> Pair:
    """A tensor of the layout of its own run: it has no partner and is covered by what is made of it."""
    if pair.golden is None:
        return pair
    return pair._replace(target=None, golden=pair.golden._replace(relation=BlockRelation(is_own=True)))
