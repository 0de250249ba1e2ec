"""Values of files as plain Python values and arrays: NPY, NPZ, and .pt files of dicts, lists and tensors.

A .pt file is read by an interpreter that executes nothing (readers/inert_pickle.py). Objects other than tensors, such
as arrays of numpy among the samples of slime, are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.log_probs.field_names import KNOWN, WRAPPERS
from npucmp.dump.readers import npy, stored_zip, torch_pt
from npucmp.dump.readers.inert_pickle import PickledTensor
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.values import stored_values
from npucmp.errors import DumpError
from npucmp.model import Payload

_PLAIN = {int, float, bool, str, type(None)}
_DEPTH = 6  # {"rollout_data": {"log_probs": [tensor]}} has 3
_MOST_BYTES = 4 << 30  # of one array: a batch of 512 requests of 100,000 tokens in float64 has 0.4 GB


def read_npy(path: str, context: ReadContext) -> Any:
    """Return the array of an NPY file."""
    with open_regular(path, context) as file:
        found = npy.header(file)
    return _array(found, path, context)


def read_npz(path: str, context: ReadContext) -> dict[str, Any]:
    """Return the arrays of an NPZ file by name. DumpError if one cannot be read."""
    with open_regular(path, context) as file:
        found = stored_zip.entries(file)
    return {name: _array(one, path, context) for name, one in found.items()}


def read_pt(path: str, context: ReadContext) -> Any:
    """Return the value of a file of torch.save: dicts, lists, numbers, texts, and arrays in place of tensors."""
    with open_regular(path, context) as file:
        if file.read(0, min(4, file.size)) != b"PK\3\4":
            return _array(torch_pt.header(file), path, context)
        value, payload_of = torch_pt.whole_value(file)
        return _plain(value, lambda one: _array(payload_of(one), path, context), 0)


def _plain(value: Any, array: Callable[[PickledTensor], Any], depth: int) -> Any:
    """Return a value of a pickle with arrays; None for an object that is not read, and for what is nested too deep."""
    if isinstance(value, PickledTensor):
        return array(value)
    if depth < _DEPTH and isinstance(value, dict):
        return {str(key): _plain(one, array, depth + 1) for key, one in value.items() if _is_wanted(key, depth)}
    if depth < _DEPTH and isinstance(value, (list, tuple)):
        plain = {*map(type, value)} <= _PLAIN
        return [*value] if plain else [_plain(one, array, depth + 1) for one in value]
    return value if type(value) in _PLAIN else None


def _is_wanted(key: object, depth: int) -> bool:
    """Return whether a key can lead to log-probabilities: the outer ones may, inner ones have known names."""
    return depth == 0 or key in KNOWN or key in WRAPPERS


def _array(found: Payload | str, path: str, context: ReadContext) -> Any:
    if isinstance(found, str):
        raise DumpError(path, found)
    size = int(np.prod(found.shape, dtype=np.float64)) * 8
    if size > _MOST_BYTES:
        raise DumpError(path, f"an array of {size:,} bytes in float64, more than the {_MOST_BYTES:,} that are read")
    read = stored_values(found, context)
    return read if read.dtype.kind in "fiub" else read.astype(np.float32)  # bfloat16 and float8 of ml_dtypes
