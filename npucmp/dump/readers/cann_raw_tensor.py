"""Check the description of a tensor in a header against the file: known type, consistent shape and size."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from npucmp.dump.limits import tensor_size
from npucmp.dump.readers.cann_enums import NOT_NUMBERS, RawTensor
from npucmp.dump.readers.safe_open import RegularFile
from npucmp.errors import DumpError
from npucmp.model.dtypes import lookup


class TensorHeader(NamedTuple):
    """A tensor as described by its header.

    `known` is whether its type number is in the table, `inline` is (offset, bytes) of values inside the header.
    """

    dtype: str
    known: bool
    layout: str
    shape: Optional[tuple[int, ...]]
    original: Optional[tuple[int, ...]]
    groups: int
    size: int
    inline: Optional[tuple[int, int]] = None
    origin: str = ""


def tensor_at(file: RegularFile, role: str, tensor: TensorHeader, offset: int, size: int) -> RawTensor:
    """Return the tensor at its place; `problem` states why its values cannot be read."""
    dtype, shape, original = tensor.dtype, tensor.shape, tensor.original
    if dtype == "undefined" or (shape is None and size):
        dtype = "int8" if dtype == "undefined" else dtype  # undefined types become bytes, as in the vendor's tool
        row = lookup(dtype)
        shape, original = (size * 8 // (row.bits or row.itemsize * 8) if row else size,), None
    shape = shape or ()
    made = RawTensor(role, dtype, tensor.layout, shape, original, tensor.groups, offset, size, origin=tensor.origin)
    return made._replace(problem=_problem(file, made, tensor.known))


def _problem(file: RegularFile, tensor: RawTensor, known: bool) -> str:
    row = lookup(tensor.dtype)
    if not known:
        return f"unknown {tensor.dtype}"
    if tensor.dtype in NOT_NUMBERS:
        return f"elements of type {tensor.dtype} are not numbers"
    if row is None:
        return f"unsupported: elements of type {tensor.dtype}"
    try:
        tensor_size(file.path, tensor.shape, row.itemsize, file.limits)
        tensor_size(file.path, tensor.original or (), row.itemsize, file.limits)
    except DumpError as error:
        return error.because
    elements = math.prod(tensor.shape)
    needed = row.stored(elements)
    if needed > tensor.size:
        if not tensor.size:
            return "its values were not written: 0 bytes"
        return f"shape {list(tensor.shape)} needs {needed} bytes, its header promises {tensor.size}"
    if tensor.offset + tensor.size > file.size:  # sizes beyond the values count too: they reveal a truncated file
        return f"ended early: {file.size} bytes, its values end at {tensor.offset + tensor.size}"
    return ""
