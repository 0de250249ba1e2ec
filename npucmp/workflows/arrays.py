"""Tensors in memory as a dump: arrays of numpy, ml_dtypes, torch or MindSpore by name, such as a state_dict.

They are written into a temporary file, which the comparison reads like any dump and which is removed after it. No
framework is imported: a tensor of torch comes with its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Union

import numpy as np

from npucmp.dump.readers.safetensors import WORDS, write_tensors
from npucmp.errors import UsageError
from npucmp.model.dtypes import canonical
from npucmp.workflows.option_fields import StrPath

Arrays = Mapping[str, Any]
Dump = Union[StrPath, Arrays]
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # types of torch by their size, which numpy has too
_DEEPEST = 32  # levels of nested mappings


@contextmanager
def as_paths(
    target: Dump, golden: Dump, truth: Optional[Dump] = None
) -> Iterator[tuple[StrPath, StrPath, Optional[StrPath]]]:
    """Yield the paths of both sides, and of the truth if there is one; a mapping is a temporary file with the name of
    its side."""
    with tempfile.TemporaryDirectory(prefix="npucmp-", ignore_cleanup_errors=True) as folder:
        third = None if truth is None else _path("truth", truth, Path(folder))
        yield _path("target", target, Path(folder)), _path("golden", golden, Path(folder)), third


def _path(side: str, dump: Dump, folder: Path) -> StrPath:
    if isinstance(dump, Mapping):
        return _written(side, dump, folder)
    if not isinstance(dump, (str, os.PathLike)):
        raise UsageError(f"{side} is {type(dump).__name__}: give a path, or a mapping such as model.state_dict()")
    return dump


def _written(side: str, arrays: Arrays, folder: Path) -> Path:
    tensors = {name: _tensor(f"{side}[{name!r}]", value) for name, value in _flat(side, arrays)}
    if not tensors:
        raise UsageError(f"{side}: the mapping holds no tensor")
    path = folder / f"{side}.safetensors"
    with open(path, "wb") as file:
        write_tensors(file, tensors)
    return path


def _flat(side: str, value: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of nested mappings and sequences, names joined by dots, in their order."""
    if isinstance(value, Mapping) or (isinstance(value, (list, tuple)) and any(map(_holds_tensors, value))):
        if depth > _DEEPEST:
            raise UsageError(f"{side}: mappings are nested deeper than {_DEEPEST} levels")
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, below in items:
            yield from _flat(side, below, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    elif value is not None and not isinstance(value, (str, bytes)):
        yield prefix, value


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple)) or hasattr(value, "dtype")


def _tensor(name: str, value: Any) -> tuple[str, tuple[int, ...], Any]:
    """Return type, shape and values of one tensor. Raises UsageError for what is none."""

    dtype = ""
    try:
        if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            dtype, value = _of_torch(value)
        elif hasattr(value, "asnumpy"):  # MindSpore
            value = value.asnumpy()
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # as a tensor of torch without storage
        raise UsageError(f"{name}: {type(value).__name__} is no array ({error})") from None
    dtype = canonical(dtype or array.dtype.name)
    if dtype not in WORDS:
        raise UsageError(
            f"{name}: elements of type {dtype} cannot be compared", [word for word in WORDS if word[:4] == dtype[:4]]
        )
    data = np.ascontiguousarray(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))
    return dtype, array.shape, data.reshape(-1).view(np.uint8)


def _of_torch(value: Any) -> tuple[str, Any]:
    """Return the type and the array of a tensor of torch; numpy lacks bfloat16 and the 8-bit floats, whose bits it has
    as integers."""
    torch = sys.modules["torch"]
    dtype = str(value.dtype).partition(".")[2]
    tensor = value.detach().to("cpu").contiguous().resolve_conj().resolve_neg()
    bits = dtype.startswith(("bfloat16", "float8"))
    return dtype, (tensor.view(getattr(torch, _BITS[tensor.element_size()])) if bits else tensor).numpy()
