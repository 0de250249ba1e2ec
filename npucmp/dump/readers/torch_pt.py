"""Read files of torch.save with one tensor or nn.Parameter, or (zip format) dicts and lists of them, without torch.

    zip (since torch 1.6)        content                                     layout: stored_zip.py
    {p}/data.pkl                 the object's pickle                         inert_pickle.py
    {p}/data/{key}               bytes of a storage, aligned to 64
    {p}/byteorder                "little" or "big"; absent before torch 2.1: little
    {p}/version, .format_version, .storage_alignment, .data/serialization_id     not needed
    {p}/constants.pkl, {p}/code/ a TorchScript archive: refused

    legacy (torch.save(…, _use_new_zipfile_serialization=False)): pickles in sequence
    0x1950a86a20f9469cfc6c       magic number, first bytes 80 02 8A 0A 6C FC 9C 46 F9 20 6A A8 50 19 2E
    1001                         protocol version
    dict                         byte order and type sizes of the writer; the data is always little endian
    object                       its storage ids have a sixth item, None or (view key, offset, size)
    list                         keys of the storages that follow
    per key                      int64 number of elements, then the bytes

The tar format of torch before 0.2 is refused. Source: torch/serialization.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, Mapping, NamedTuple, Union

from npucmp.dump.limits import Limits, tensor_size
from npucmp.dump.readers.inert_pickle import (
    IncompletePickle,
    Machine,
    PickledTensor,
    RefusedPickle,
    Storage,
    holds_texts,
    one_tensor,
    tensors_in,
    unpickle,
)
from npucmp.dump.readers.safe_open import RegularFile
from npucmp.dump.readers.stored_zip import Member, Members, data_offset, members
from npucmp.dump.readers.strides import compact, reach
from npucmp.errors import DumpError
from npucmp.model import Payload
from npucmp.model.dtypes import DTYPES, PACKED_SUFFIX, canonical, lookup

_SMALL = 8192  # a file up to this size is read at once: cheaper than three reads
_TAIL = 4096  # of a larger file: contains the directory of a file with one tensor
_HEAD = 2048  # contains data.pkl, byteorder and the local header of data/0
_LEGACY_HEAD = 8192
_CACHED_PICKLE = 1024  # bytes; longer pickles do not hold a single tensor and would waste memory
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001


def header(file: RegularFile) -> Payload:
    """Return the facts of the only tensor in the file; DumpError for other content or a malformed file."""
    start = _begun(file)
    try:
        if start == b"PK\3\4":
            return _zip(file)
        return _legacy(file, start)
    except RefusedPickle as refused:
        raise DumpError(file.path, str(refused)) from None


def entries(file: RegularFile) -> dict[str, Union[Payload, str]]:
    """Return the facts of all tensors in a file, or why one cannot be read.

    Keys are their places in dicts, lists and tuples: "model.0.weight"; "" for a single tensor, whose problems raise
    DumpError. A file that holds texts alone, as the ids of requests, has none. The legacy format supports only a single
    tensor.
    """
    if _begun(file) != b"PK\3\4":
        return {"": header(file)}
    try:
        named, top, pickle = _read_zip(file)
        value = unpickle(pickle, 0, file.limits)[0]
        found = tensors_in(value, file.limits)
        if not found and holds_texts(value):
            return {}
        if not found or "" in found:
            one = one_tensor(value)
            return {"": _payload_in_zip(file, named, top, one.storage, _view_in_storage(one, file.limits))}
    except RefusedPickle as refused:
        raise DumpError(file.path, str(refused)) from None
    read: dict[str, Union[Payload, str]] = {}
    for name, one in found.items():
        try:
            read[name] = _payload_in_zip(file, named, top, one.storage, _view_in_storage(one, file.limits))
        except (RefusedPickle, DumpError) as error:
            read[name] = getattr(error, "because", str(error))
    return read


PayloadOf = Callable[[PickledTensor], Payload]


def read_object(file: RegularFile, opcodes: Mapping[int, Callable[[Machine], object]]) -> tuple[object, PayloadOf]:
    """Return the value in a zip file by another table of opcodes, and the function that makes payloads of its tensors.
    The function raises RefusedPickle or DumpError for a tensor that cannot be read; other content is a DumpError."""
    if _begun(file) != b"PK\3\4":
        raise DumpError(file.path, "unsupported: a checkpoint in the legacy format of torch.save")
    try:
        named, top, pickle = _read_zip(file)
        value = unpickle(pickle, 0, file.limits, opcodes)[0]
    except RefusedPickle as refused:
        raise DumpError(file.path, str(refused)) from None
    return value, lambda one: _payload_in_zip(file, named, top, one.storage, _view_in_storage(one, file.limits))


def _begun(file: RegularFile) -> bytes:
    """Prefetch the needed parts of a file and return its first bytes."""
    if not file.is_held:
        file.prefetch(0, _HEAD if file.size > _SMALL else _SMALL)
        if file.size > _SMALL:
            file.prefetch(file.size - _TAIL, _TAIL)
    return file.read(0, min(4, file.size))


def _zip(file: RegularFile) -> Payload:
    limits = file.limits
    named, top, pickle = _read_zip(file)
    storage, view = _cached(pickle, limits) if len(pickle) <= _CACHED_PICKLE else _contents(pickle, limits)
    return _payload_in_zip(file, named, top, storage, view)


def _read_zip(file: RegularFile) -> tuple[Members, bytes, bytes]:
    """Return the members of a zip file, their common folder, and its pickle."""
    limits = file.limits
    named = members(file)
    tops = [name[:-9] for name in named if name.endswith(b"/data.pkl") and name.count(b"/") == 1]
    if len(tops) != 1:
        raise RefusedPickle("a zip file without data.pkl: not written by torch.save")
    (top,) = tops
    code = top + b"/code/"
    if top + b"/constants.pkl" in named or any(name.startswith(code) for name in named):
        raise RefusedPickle("unsupported: a TorchScript archive, not a tensor")
    member = Member(*named[top + b"/data.pkl"])
    if member.size > limits.pickle_bytes:
        raise RefusedPickle(limits.limit_message(f"a pickle of {member.size:,} bytes", "pickle_bytes"))
    return named, top, _content(file, member)


def _payload_in_zip(file: RegularFile, named: Members, top: bytes, storage: Storage, view: _View) -> Payload:
    """Return the payload of a view of a storage in the zip file."""
    place = named.get(top + b"/data/" + storage.key.encode("utf-8", "surrogatepass"))
    if place is None:
        raise RefusedPickle(f"the data of storage {storage.key} is missing")
    data = Member(*place)
    if data.size != storage.whole:
        raise RefusedPickle(f"holds {data.size} bytes of data, its header promises {storage.whole}")
    place = named.get(top + b"/byteorder")
    order = None if place is None else Member(*place)
    mark = b"little" if order is None else _content(file, order) if order.size < 7 else b""
    if mark not in (b"little", b"big"):
        raise RefusedPickle("a byte order that is neither little nor big")
    return _payload(file.path, view, data_offset(file, data), "<" if mark == b"little" else ">")


def _content(file: RegularFile, member: Member) -> bytes:
    return file.read(data_offset(file, member), member.size)


def _legacy(file: RegularFile, start: bytes) -> Payload:
    limits = file.limits
    if start[:1] != b"\x80":
        raise RefusedPickle(_what(file))
    head = file.read(0, min(_LEGACY_HEAD, file.size))
    try:
        found, end = _pickles(head, limits)
    except IncompletePickle:
        if file.size <= _LEGACY_HEAD:
            raise
        try:
            found, end = _pickles(file.read(0, min(limits.pickle_bytes, file.size)), limits)
        except IncompletePickle:
            if file.size <= limits.pickle_bytes:
                raise
            raise RefusedPickle(limits.limit_message("a pickle that is damaged or very long", "pickle_bytes")) from None
    storage = found.storage
    if int.from_bytes(file.read(end, 8), "little") * DTYPES[storage.dtype].itemsize != storage.whole:
        raise DumpError(file.path, "the number of elements before the data differs from the header's", end)
    held = file.size - end - 8
    if held != storage.whole:
        raise DumpError(file.path, f"holds {held} bytes of data, its header promises {storage.whole}", end + 8)
    return _payload(file.path, _view_in_storage(found, limits), end + 8, "<")


def _pickles(data: bytes, limits: Limits) -> tuple[PickledTensor, int]:
    """Return the tensor of a legacy file and the offset of its storage."""
    magic, place = unpickle(data, 0, limits)
    if magic != _MAGIC:
        raise RefusedPickle("a pickle, but not one of torch.save")
    protocol, place = unpickle(data, place, limits)
    if protocol != _PROTOCOL:
        raise RefusedPickle("unsupported: another protocol than 1001 of the legacy format")
    _, place = unpickle(data, place, limits)
    value, place = unpickle(data, place, limits)
    found = one_tensor(value)
    keys, place = unpickle(data, place, limits)
    if keys != [found.storage.key]:
        raise RefusedPickle("the list of storages is not that of one tensor")
    return found, place


def _what(file: RegularFile) -> str:
    """Return the kind of a file that is not a current .pt file."""
    if file.size == 0:
        return "an empty file"
    if file.size > 262 and file.read(257, 5) == b"ustar":
        return "unsupported: the tar format of torch before 0.2; load it with torch and save it again"
    return "neither the zip nor the legacy format of torch.save"


class _View(NamedTuple):
    """The checked description of a tensor; `start` is in bytes from the start of the storage."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    strides: tuple[int, ...]


def _contents(pickle: bytes, limits: Limits) -> tuple[Storage, _View]:
    found = one_tensor(unpickle(pickle, 0, limits)[0])
    return found.storage, _view_in_storage(found, limits)


_cached = lru_cache(maxsize=1024)(_contents)  # tensors of one shape and dtype share their pickle


def _view_in_storage(found: PickledTensor, limits: Limits) -> _View:
    """Return the view within its storage; every element must be inside."""
    dtype, packed = lookup(canonical(found.dtype)), found.dtype.endswith(PACKED_SUFFIX)
    if dtype is None:
        raise RefusedPickle(f"unsupported: elements of type {found.dtype}")
    try:
        size = tensor_size("", found.shape, dtype.itemsize, limits)  # packed elements count as one byte
    except DumpError as error:
        raise RefusedPickle(error.because) from None
    if size > max(found.storage.size, limits.expanded_bytes):
        what = f"a view that makes {size:,} bytes of {found.storage.size:,}"
        raise RefusedPickle(limits.limit_message(what, "expanded_bytes"))
    _, _, offset, shape, strides = found
    if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)):
        raise RefusedPickle("a damaged header: offset, size and stride must be counts")
    span = reach(shape, strides)
    if span and (offset + span) * dtype.itemsize > found.storage.size:
        raise RefusedPickle("the tensor reaches out of its storage")
    start = found.storage.start + (offset * dtype.itemsize if span else 0)
    strides = compact(shape, strides)
    if packed and shape:
        if strides:
            raise RefusedPickle(f"unsupported: a strided view of elements of type {found.dtype}")
        shape = (*shape[:-1], 2 * shape[-1])
    return _View(dtype.name, shape, start, strides)


def _payload(path: str, view: _View, base: int, byteorder: str) -> Payload:
    """Return the payload of a view of a storage that begins at byte `base`."""
    return Payload(path, view.dtype, view.shape, base + view.start, view.strides, byteorder)
