"""Content of each tensor of a record: the sum of the scrambled bits of its elements.

Two tensors with equal marks hold the same values, in any order, so a tensor is recognised after a view, a transpose or
a copy. A constant, or a tensor of fewer than four numbers that people write, would match everywhere, so it has no mark.
A tensor without values has none either.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np

from npucmp.dump.context import ReadContext
from npucmp.dump.readers import values
from npucmp.flow.contents import TINY, is_computed
from npucmp.model import Operator
from npucmp.model.dtypes import lookup
from npucmp.recompute.load_values import READ_ERRORS, payload_of

BLOCK = 1 << 18  # elements
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Mark(NamedTuple):
    """Content of a tensor: its number of elements, type and sum of bits."""

    elements: int
    dtype: str
    bits: int


def marks_of(operator: Operator, context: ReadContext) -> dict[str, Mark]:
    """Return the marks of the float tensors of an operator, by slot."""
    found = {}
    for tensor in operator.tensors:
        dtype = lookup(tensor.dtype)
        if dtype is None or dtype.kind != "f" or (not tensor.shape and not tensor.file and tensor.payload is None):
            continue
        try:
            blocks = values.blocks(payload_of(tensor, context), BLOCK, context=context)
            bits = mark_of(blocks)
        except READ_ERRORS:  # the row of its operator has the error
            continue
        if bits is not None:
            found[tensor.slot] = Mark(math.prod(tensor.shape), tensor.dtype, bits)
    return found


def mark_of(blocks: Any) -> Optional[int]:
    """Return the sum for the blocks of one tensor; None if equality would prove nothing."""
    total, size, first, same, few = np.uint64(0), 0, None, True, False
    for block in blocks:
        if not block.size:
            continue
        bits = bits_of(block)
        size += bits.size
        first = bits[0] if first is None else first
        same = same and bool((bits == first).all())
        few = few or (size < TINY and any(is_computed(float(one)) for one in block))
        with np.errstate(over="ignore"):
            total += scrambled(bits).sum(dtype=np.uint64)
    if size < TINY:
        return int(total) if few else None
    return None if same else int(total)


def bits_of(array: Any) -> Any:
    """Return the elements as unsigned numbers of the same width."""
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")


def scrambled(bits: Any) -> Any:
    """Return numbers whose sums distinguish sets (the finaliser of splitmix64)."""
    found = bits.astype(np.uint64)
    with np.errstate(over="ignore"):
        found = (found + _ODD[0]) * _ODD[1]
        found ^= found >> np.uint64(29)
        found *= _ODD[2]
        found ^= found >> np.uint64(32)
    return found
