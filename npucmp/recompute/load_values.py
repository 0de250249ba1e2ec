"""Values of a dumped tensor, if the file matches the record."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npucmp.dump.context import ReadContext
from npucmp.dump.readers import header, values
from npucmp.errors import NpucmpError
from npucmp.model import Payload, TensorRef
from npucmp.model.dtypes import numpy_dtype
from npucmp.recompute.arguments import MissingTensor, RefusedRecord

READ_ERRORS = (NpucmpError, RefusedRecord, OSError, MemoryError)  # raised by reading the values of a tensor


def read(tensor: TensorRef, context: ReadContext) -> Any:
    """Return the values as an array of the logical shape."""
    payload = payload_of(tensor, context)
    found = [*values.blocks(payload, max(1, math.prod(payload.shape)), context=context)]
    array = found[0] if found else np.empty(0, numpy_dtype(payload.dtype))
    return array.reshape(tensor.shape)


def payload_of(tensor: TensorRef, context: ReadContext) -> Payload:
    """Return the place of the values. Raises RefusedRecord if it differs from the record, MissingTensor if there is
    none."""
    if tensor.problem:
        raise RefusedRecord(tensor.problem)
    if not tensor.file and tensor.payload is None:
        raise MissingTensor(f"the dump holds no values of {tensor.slot}")
    payload = tensor.payload or header(tensor.encoding, tensor.file, context)
    if payload.shape != tensor.shape or payload.dtype != tensor.dtype:
        raise RefusedRecord(f"the file of {tensor.slot} holds {payload.dtype} {list(payload.shape)}")
    return payload
