"""Describe a dataset through the HDF5 library: its type, shape and the place of its values. Runs with hdf5_walk.py."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from npucmp.dump.limits import tensor_size
from npucmp.dump.readers.hdf5_walk import H5File, h5py_errors
from npucmp.errors import DumpError
from npucmp.model.dtypes import DTYPES

Fact = dict[str, Any]

FILTERS = (1, 2, 3)  # deflate, shuffle, fletcher32: unpacked in hdf5.py
_OTHER_FILTERS = {4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32001: "blosc", 32004: "lz4", 32015: "zstd"}
_SLACK = 1 << 20
_CODES = 256  # maximum cached number types
_DTYPES_BY_CODE: dict[bytes, tuple[str, str]] = {}  # by the library's description of a type
_BFLOAT16 = (2, (15, 7, 8, 0, 7), 127)  # bytes; positions of sign, exponent, its width, mantissa, its width; bias


def dataset_facts(file: H5File, dataset: Any, attributes: Sequence[str]) -> Fact:
    """Return the facts of a dataset (see hdf5_child.py); of the named attributes, those that are integers."""
    has_attributes = _has_attributes(file, dataset)
    found = {name: _attribute(file, dataset, name.encode()) if has_attributes else [] for name in attributes}
    try:
        with h5py_errors(file.path, file.limits):
            return {"attributes": found, **_storage_of(file, dataset)}
    except DumpError as error:
        return {"attributes": found, "problem": error.because}


def _has_attributes(file: H5File, dataset: Any) -> bool:
    """Return whether a dataset has attributes; True too if their count is damaged, so that _attribute() checks each."""
    from h5py import h5a

    try:
        with h5py_errors(file.path, file.limits):
            return bool(h5a.get_num_attrs(dataset))
    except DumpError:
        return True


def _attribute(file: H5File, dataset: Any, name: bytes) -> list[int]:
    """Return an attribute; [] if it is damaged."""
    try:
        return list(_integers(file, dataset, name))
    except DumpError:
        return []


def _storage_of(file: H5File, dataset: Any) -> Fact:
    """Return the place of the values of a dataset; DumpError states why they cannot be read."""
    properties = dataset.get_create_plist()
    direct = _require_own_bytes(file.path, properties)
    dtype, order = _dtype(file.path, dataset)
    shape = _shape(file.path, dataset)
    needed = tensor_size(file.path, shape, DTYPES[dtype].itemsize, file.limits)
    chunk = _chunk(properties)
    _require_stored(file, dataset, shape, needed, chunk)
    kind = {"dtype": dtype, "order": order, "shape": shape}
    if not needed:
        return kind
    if direct:
        offset = dataset.get_offset()
        if not 0 <= offset <= file.size - needed:
            raise DumpError(file.path, f"its values are not within the file, which ends at {file.size} (byte {offset})")
        return {**kind, "offset": int(offset)}
    if not chunk:
        return {**kind, "data": b64encode(_compact(dataset, shape)).decode()}
    packed = _filters(properties)
    return {**kind, "chunk": chunk, "filters": packed, "table": _table(file.path, dataset, shape, chunk)}


def _table(path: str, dataset: Any, shape: Sequence[int], chunk: Sequence[int]) -> list[int]:
    """Return offset, bytes and filter mask of each chunk, flat, in C order; DumpError if a chunk is missing."""
    grid = [-(-dim // step) for dim, step in zip(shape, chunk)]
    places: dict[tuple[int, ...], tuple[int, int, int]] = {}

    def take(info: Any) -> None:
        place = tuple(at // step for at, step in zip(info.chunk_offset, chunk))
        places[place] = int(info.byte_offset), int(info.size), int(info.filter_mask)

    if hasattr(dataset, "chunk_iter"):
        dataset.chunk_iter(take)
    else:  # h5py before 3.8
        for index in range(dataset.get_num_chunks()):
            take(dataset.get_chunk_info(index))
    wanted = list(np.ndindex(*grid))
    missing = sum(place not in places for place in wanted)
    if missing:
        raise DumpError(path, f"is incomplete: {len(wanted) - missing} of {len(wanted)} chunks are in the file")
    return [number for place in wanted for number in places[place]]


def _require_own_bytes(path: str, properties: Any) -> bool:
    """Return whether the values are contiguous; DumpError if they lie in other files or have an unsupported filter.

    This check comes first and uses the creation properties: a virtual dataset opens its sources to determine its shape.
    """
    from h5py import h5d

    layout = properties.get_layout()
    if layout == h5d.VIRTUAL:
        raise DumpError(path, "refused: a virtual dataset, composed of other files")
    if properties.get_external_count():
        raise DumpError(path, "refused: external storage, its values are in other files")
    for code, _ in _filters(properties):
        if code not in FILTERS:
            word = _OTHER_FILTERS.get(code, "unknown")
            raise DumpError(path, f"unsupported: packed by filter {code} ({word}); unpack with h5repack -f NONE")
    return bool(layout == h5d.CONTIGUOUS)


def _filters(properties: Any) -> list[tuple[int, tuple[int, ...]]]:
    """Return (number, parameters) of the filters in the order in which they packed a chunk."""
    found = [properties.get_filter(index) for index in range(properties.get_nfilters())]
    return [(one[0], tuple(one[2])) for one in found]


def _dtype(path: str, dataset: Any) -> tuple[str, str]:
    """Return canonical name and byte order; DumpError for elements that are not plain numbers in standard encoding."""
    from h5py import h5t

    kind = dataset.get_type()
    if kind.get_class() not in (h5t.INTEGER, h5t.FLOAT):
        return _new_dtype(path, dataset, kind)
    code = kind.encode()
    if code not in _DTYPES_BY_CODE and len(_DTYPES_BY_CODE) < _CODES:
        _DTYPES_BY_CODE[code] = _new_dtype(path, dataset, kind)
    return _DTYPES_BY_CODE.get(code) or _new_dtype(path, dataset, kind)


def _new_dtype(path: str, dataset: Any, kind: Any) -> tuple[str, str]:
    from h5py import h5t

    if kind.get_class() == h5t.FLOAT and (kind.get_size(), kind.get_fields(), kind.get_ebias()) == _BFLOAT16:
        order = {h5t.ORDER_LE: "<", h5t.ORDER_BE: ">"}.get(kind.get_order())
        if order:
            return "bfloat16", order
    found = dataset.dtype
    usual = not found.metadata and found.name in DTYPES  # metadata: text, references, enumerations
    if not usual or not kind.equal(h5t.py_create(found, logical=True)):
        raise DumpError(path, f"unsupported: elements of type {_word(kind)}")
    return found.name, ">" if found.str[0] == ">" else "<"


def _word(kind: Any) -> str:
    from h5py import h5t

    names = "INTEGER FLOAT TIME STRING BITFIELD OPAQUE COMPOUND REFERENCE ENUM VLEN ARRAY".split()
    words = {getattr(h5t, name, None): name.lower() for name in names}
    return f"{words.get(kind.get_class(), 'unknown')} of {kind.get_size()} bytes"


def _shape(path: str, dataset: Any) -> tuple[int, ...]:
    from h5py import h5s

    space = dataset.get_space()
    if space.get_simple_extent_type() == h5s.NULL:
        raise DumpError(path, "is empty: its data space is null")
    return tuple(int(dim) for dim in space.get_simple_extent_dims())


def _require_stored(file: H5File, dataset: Any, shape: Sequence[int], needed: int, chunk: Sequence[int]) -> None:
    """Raise DumpError if the file cannot hold the bytes that the shape requires."""
    if not needed:
        return
    stored = min(int(dataset.get_storage_size()), file.size)
    if not stored:
        raise DumpError(file.path, "was never written: the file contains no values of it")
    if not chunk and needed > stored:
        raise DumpError(file.path, f"holds {stored} bytes of data, its shape promises {needed}")
    if chunk and not file.whole:
        raise DumpError(file.path, "unsupported before HDF5 2.0: chunks in a file with a user block")
    if chunk:
        needed = _chunked_bytes(file, dataset, shape, chunk)
    if needed > file.limits.hdf5_ratio * stored + _SLACK:
        raise DumpError(
            file.path, file.limits.limit_message(f"{needed:,} bytes unpacked from {stored:,}", "hdf5_ratio")
        )


def _chunk(properties: Any) -> tuple[int, ...]:
    """Return the shape of a chunk, () for a dataset without chunks."""
    from h5py import h5d

    return tuple(properties.get_chunk()) if properties.get_layout() == h5d.CHUNKED else ()


def _chunked_bytes(file: H5File, dataset: Any, shape: Sequence[int], chunk: Sequence[int]) -> int:
    """Return the bytes that all chunks unpack to; all must be written, because fill values are not results."""
    size = math.prod(chunk) * int(dataset.get_type().get_size())
    if len(chunk) != len(shape) or size < 1:
        raise DumpError(file.path, f"chunks of {size} bytes in {len(chunk)} dimensions")
    if size > file.limits.hdf5_chunk_bytes:
        raise DumpError(file.path, file.limits.limit_message(f"chunks of {size:,} bytes", "hdf5_chunk_bytes"))
    needed = math.prod(-(-dim // step) for dim, step in zip(shape, chunk))
    written = dataset.get_num_chunks()
    if written < needed:
        raise DumpError(file.path, f"is incomplete: {written} of {needed} chunks are in the file")
    return needed * size


def _integers(file: H5File, dataset: Any, name: bytes, most: int = 64) -> tuple[int, ...]:
    """Return an attribute of one or a few integers; () if it is absent or has another form."""
    from h5py import h5a, h5s, h5t

    with h5py_errors(file.path, file.limits):
        if not h5a.exists(dataset, name):
            return ()
        attribute = h5a.open(dataset, name)
        space = attribute.get_space()
        if attribute.get_type().get_class() != h5t.INTEGER or space.get_simple_extent_type() == h5s.NULL:
            return ()
        shape: tuple[int, ...] = space.get_simple_extent_dims()
        if len(shape) > 1 or math.prod(shape) > most:
            return ()
        values = np.empty(shape, np.int64)
        if values.size:
            attribute.read(values)
        return tuple(int(value) for value in values.reshape(-1))


def _compact(dataset: Any, shape: Sequence[int]) -> Any:
    """Read a dataset of less than 64 KiB in its object's header, in its own type so that nothing is converted."""
    from h5py import h5s

    found = np.empty(shape, f"V{dataset.get_type().get_size()}")
    dataset.read(h5s.ALL, h5s.ALL, found, dataset.get_type())
    return found.tobytes()
