"""Values of files as plain Python values and arrays: NPY, NPZ, and .pt files of dicts, lists and tensors.

A .pt file is read by an interpreter that executes nothing (readers/opaque_pickle.py). Objects other than tensors, such
as arrays of numpy among the samples of slime, are not made; a TensorDict is the dict of its state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.log_probs.field_names import KNOWN, NEEDED, WRAPPERS
from npucmp.dump.readers import npy, stored_zip, torch_pt
from npucmp.dump.readers.inert_pickle import PickledTensor, RefusedPickle
from npucmp.dump.readers.opaque_pickle import OPAQUE_OPCODES, OpaqueObject
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.values import stored_values
from npucmp.errors import DumpError
from npucmp.model import Payload

_PLAIN = {int, float, bool, str, type(None)}
_DEPTH = 6  # {"rollout_data": {"log_probs": [tensor]}} has 3
_MOST_EXPERTS = 1 << 28  # of a batch (requests, positions, layers, k), larger ones are left out
_MOST_BYTES = 8 << 30  # of a file; a batch of 512 requests of 100,000 tokens has 0.4 GB an array


def read_npy(path: str, context: ReadContext) -> Any:
    """Return the array of an NPY file."""
    with open_regular(path, context) as file:
        found = npy.header(file)
    return _Arrays(path, context).read(found)


def read_npz(path: str, context: ReadContext) -> dict[str, Any]:
    """Return the arrays of known names in an NPZ file. DumpError if log-probabilities, masks or tokens cannot be read;
    identities of another type are left out."""
    with open_regular(path, context) as file:
        found = stored_zip.entries(file)
    arrays = _Arrays(path, context)
    wanted = {name: one for name, one in found.items() if name in KNOWN}
    return {name: arrays.read(one) for name, one in wanted.items() if name in NEEDED or not isinstance(one, str)}


def read_pt(path: str, context: ReadContext) -> Any:
    """Return the value of a file of torch.save: dicts, lists, numbers, texts, and arrays in place of tensors."""
    arrays = _Arrays(path, context)
    with open_regular(path, context) as file:
        if file.read(0, min(4, file.size)) != b"PK\3\4":
            return arrays.read(torch_pt.header(file))
        value, payload_of = torch_pt.read_object(file, OPAQUE_OPCODES)
        try:
            return _plain(value, lambda one: arrays.read(payload_of(one)), 0)
        except RefusedPickle as refused:
            raise DumpError(path, str(refused)) from None


class _Arrays:
    """The arrays of one file, which may not have more bytes together than are read."""

    def __init__(self, path: str, context: ReadContext) -> None:
        self._path, self._context = path, context
        self._bytes = 0

    def read(self, found: Payload | str) -> Any:
        """Return the values of a payload; DumpError for a reason in its place, and for too many bytes."""
        if isinstance(found, str):
            raise DumpError(self._path, found)
        if len(found.shape) == 4 and math.prod(found.shape) > _MOST_EXPERTS:
            return None
        self._bytes += math.prod(found.shape) * 8
        if self._bytes > _MOST_BYTES:
            words = f"arrays of {self._bytes:,} bytes in float64, more than the {_MOST_BYTES:,} that are read of a file"
            raise DumpError(self._path, words)
        read = stored_values(found, self._context)
        if read.dtype.kind == "c":
            raise DumpError(self._path, "complex numbers, which are no log-probabilities")
        return read if read.dtype.kind in "fiub" else read.astype(np.float32)  # bfloat16 and float8 of ml_dtypes


def _plain(value: Any, array: Callable[[PickledTensor], Any], depth: int) -> Any:
    """Return a value of a pickle with arrays; None for an object that is not read, and for what is nested too deep."""
    if isinstance(value, PickledTensor):
        return array(value)
    if depth < _DEPTH and isinstance(value, OpaqueObject):
        return _plain(value.state, array, depth + 1)  # of a TensorDict: its dict of tensors
    if depth < _DEPTH and isinstance(value, dict):
        return {
            str(key): _plain(one, array, depth + 1)
            for key, one in value.items()
            if depth < 2 or key in KNOWN or key in WRAPPERS
        }
    if depth < _DEPTH and isinstance(value, (list, tuple)):
        plain = {*map(type, value)} <= _PLAIN
        return [*value] if plain else [_plain(one, array, depth + 1) for one in value]
    return value if type(value) in _PLAIN else None
