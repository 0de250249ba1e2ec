"""Read values of single tensors. The number of elements is bounded, so that a check stays much faster than a
comparison."""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np

from npucmp.dump.context import ReadContext
from npucmp.dump.readers.values import blocks
from npucmp.errors import NpucmpError
from npucmp.measure.kernel.numpy_kernel import widen
from npucmp.measure.pairs import payload_of
from npucmp.model import TensorRef
from npucmp.run_differences.data_relation import Array

MOST = 1 << 22  # most elements of a tensor that are read


def values_of(tensor: TensorRef, context: ReadContext, most: int = MOST) -> Optional[Array]:
    """The values of a tensor; of a large tensor those of its first samples. None if the dump has no values.

    16-bit and narrower floats are returned as float32. Raises NpucmpError if the values are unreadable.
    """
    payload = payload_of(tensor, context=context)
    if payload is None:
        return None
    count = math.prod(payload.shape)
    row = max(1, math.prod(payload.shape[1:]))
    rows = payload.shape[0] if count <= most or not payload.shape else max(1, most // row)
    wanted = min(count, rows * row, most) if payload.shape else 1
    found: list[Any] = []
    for block in blocks(payload, min(1 << 16, max(1, wanted)), context=context):
        found.append(block[: wanted - sum(map(len, found))].copy())
        if sum(map(len, found)) >= wanted:
            break
    flat = np.concatenate(found) if found else np.empty(0, np.float32)
    with np.errstate(all="ignore"):  # signalling NaN
        flat = flat if flat.dtype.kind in "biuc" else widen(flat)
    if not payload.shape or wanted == count:
        return flat.reshape(payload.shape)
    return flat.reshape(wanted // row, *payload.shape[1:]) if wanted % row == 0 else flat


def readable_values(tensor: TensorRef, context: ReadContext) -> Optional[Array]:
    """The values of a tensor, bounded; None if the dump has none or they are unreadable."""
    try:
        return values_of(tensor, context)
    except NpucmpError:
        return None
