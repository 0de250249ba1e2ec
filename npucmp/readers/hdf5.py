"""HDF5 files: a tree of groups and datasets, read through h5py as something that may lie.

    superblock at byte 0, behind a user block at 512, 1024 …: 89 48 44 46 0D 0A 1A 0A ("\\x89HDF\\r\\n\\x1a\\n")

    link in a group       hard            followed; a group that was met before is not entered again
                          soft            counted, not followed: what it names has a hard link of its own
                          external        refused: another file
    layout of a dataset   contiguous      at one place of the file: its values are read without HDF5
                          compact         in the object's header, read by h5py
                          chunked         in boxes of one shape, which filters may have packed: unpacked here
                          virtual, external storage     refused: other files
    elements              numbers and h5py's bool; text, references, compounds, enumerations, arrays are refused

    filters               1 deflate, 2 shuffle, 3 fletcher32; others are refused

What a dataset claims is held against what the file stores before anything is allocated or unpacked. Values are never
read through the library's own pipeline: it takes the lengths in a damaged file for granted, and may end the process;
for a filter that it does not have, it would load what lies in its plug-in folder.
Source: HDF5 File Format Specification 3.0 (support.hdfgroup.org); DEFLATE packs at most 1032 to 1 (zlib.net).
"""

from __future__ import annotations

import math
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from npucmp.dtypes import DTYPES, numpy_dtype
from npucmp.errors import DumpError, MissingExtra, NpucmpError
from npucmp.model import Payload
from npucmp.readers.files import RegularFile, open_regular
from npucmp.readers.limits import payload_bytes
from npucmp.readers.strides import compact, reach

Array = NDArray[Any]
Box = tuple[tuple[int, ...], tuple[int, ...]]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_PLACES = (0, 512, 1024, 2048)
DEPTH = 32
OBJECTS = 1_000_000
NAMES = 256 << 20  # bytes of all names together
_OTHER_FILTERS = {4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32001: "blosc", 32004: "lz4", 32015: "zstd"}
_RATIO = 1100
_SLACK = 1 << 20
_CHUNK = 1 << 30  # bytes of one chunk, which the library unpacks as a whole
_LEAST, _MOST = 1 << 20, 64 << 20  # bytes of one slab, unless one row of chunks is larger
_ROW = 1 << 30  # a row of chunks above this is unpacked more than once
_BFLOAT16 = (2, (15, 7, 8, 0, 7), 127)  # bytes; places of sign, exponent, its width, mantissa, its width; bias
_NATIVE = "<" if sys.byteorder == "little" else ">"


class File(NamedTuple):
    """An open file: as h5py knows it, and as bytes. `whole` is whether the addresses of chunks count from byte 0."""

    path: str
    bytes: RegularFile
    root: Any
    whole: bool = True

    @property
    def size(self) -> int:
        return self.bytes.size


class Entry(NamedTuple):
    """One named object. `dataset` is open while the walk stands at it; `problem` says why it is not followed."""

    parts: tuple[str, ...]
    dataset: Any = None
    problem: str = ""

    @property
    def name(self) -> str:
        return "/" + "/".join(self.parts)


def is_hdf5(path: str) -> bool:
    """Whether a regular file has the signature where one may stand; never raises."""
    try:
        with open_regular(path) as file:
            ends = [place for place in _PLACES if place + len(SIGNATURE) <= file.size]
            return any(file.read(place, len(SIGNATURE)) == SIGNATURE for place in ends)
    except DumpError:
        return False


@contextmanager
def opened(path: str) -> Iterator[File]:
    """An HDF5 file for reading, for the time of a `with`. MissingExtra without h5py, DumpError if it is damaged."""
    try:
        import h5py
    except ImportError:
        raise MissingExtra("h5py", f"reading {path}") from None
    with open_regular(path) as regular:
        with _told(path):
            try:
                handle = h5py.File(path, "r", locking=False)  # a lock needs write permission on some file systems
            except TypeError:  # h5py before 3.5
                handle = h5py.File(path, "r")
            # behind a user block, older libraries count the addresses of chunks from its end
            whole = not handle.userblock_size or h5py.version.hdf5_version_tuple >= (2, 0, 0)
        try:
            yield File(path, regular, handle.id, whole)
        finally:
            try:
                handle.close()
            except Exception:  # of a damaged file that was read as far as possible
                pass


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Whatever h5py raises on a damaged file (nearly every built-in error has been seen) becomes a DumpError."""
    try:
        yield
    except NpucmpError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:160]
        raise DumpError(path, f"cannot be read by HDF5: {words or type(error).__name__}") from None


class Walk:
    """The objects of a file in the order of the dump: groups before what they hold, each group once.

    Iterating fills `soft` (soft links passed by), `again` (further names of groups), and `tracked`: whether the file
    keeps the order in which things were created.
    """

    def __init__(self, file: File) -> None:
        self.soft = self.again = self._count = self._names = 0
        self.tracked = True
        self._file = file
        self._seen: set[Any] = set()

    def __iter__(self) -> Iterator[Entry]:
        with _told(self._file.path):
            root = _open(self._file.root, b"/")
            self._seen.add(_address(root))
        yield from self._group(root, ())

    def _group(self, group: Any, parts: tuple[str, ...]) -> Iterator[Entry]:
        try:
            links = self._links(group)
        except DumpError as error:
            if not parts:
                raise
            yield Entry(parts, problem=error.because)
            return
        for name, kind in links:
            yield from self._link(group, name, kind, (*parts, name.decode("utf-8", "surrogateescape")))

    def _links(self, group: Any) -> list[tuple[bytes, int]]:
        """(name, kind) of all links in the order of creation, without it in the natural order of names."""
        found: dict[bytes, tuple[Optional[int], int]] = {}

        def take(name: bytes, info: Any) -> Optional[str]:
            if name in found:
                return "is damaged: a group holds one name twice"  # or its index runs in a circle
            found[name] = info.corder if info.corder_valid else None, info.type
            self._count += 1
            self._names += len(name)
            return f"more than {OBJECTS} objects" if self._count > OBJECTS or self._names > NAMES else None

        with _told(self._file.path):
            stopped = group.links.iterate(take, info=True)
        if isinstance(stopped, tuple):  # newer h5py tells where it stopped too
            stopped = stopped[0]
        if stopped:
            raise DumpError(self._file.path, stopped)
        tracked = all(order is not None for order, _ in found.values())
        self.tracked = self.tracked and (tracked or len(found) < 2)
        names = sorted(found, key=lambda name: found[name][0] or 0 if tracked else _natural(name))
        return [(name, found[name][1]) for name in names]

    def _link(self, group: Any, name: bytes, kind: int, parts: tuple[str, ...]) -> Iterator[Entry]:
        from h5py import h5d, h5g, h5l

        if kind == h5l.TYPE_SOFT:
            self.soft += 1
            return
        try:
            _require_plain(self._file.path, name, kind)
            if len(parts) > DEPTH:
                raise DumpError(self._file.path, f"nested deeper than {DEPTH} groups, not read")
            with _told(self._file.path):
                found = _open(group, name)
                address = _address(found)
        except DumpError as error:
            yield Entry(parts, problem=error.because)
            return
        if isinstance(found, h5d.DatasetID):
            yield Entry(parts, found)
        elif isinstance(found, h5g.GroupID):
            if address in self._seen:
                self.again += 1
                return
            self._seen.add(address)
            yield Entry(parts)
            yield from self._group(found, parts)


def _natural(name: bytes) -> Any:
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(rb"([0-9]{1,18})", name))]


def _require_plain(path: str, name: bytes, kind: int) -> None:
    """A link that stays in the file, under a name that the library does not take for a path."""
    from h5py import h5l

    if kind == h5l.TYPE_EXTERNAL:
        raise DumpError(path, "refused: an external link, to another file")
    if kind != h5l.TYPE_HARD:
        raise DumpError(path, "refused: a link of an unknown kind")
    if b"/" in name or name in (b"", b"."):
        raise DumpError(path, "refused: a name that is a path")


def _open(group: Any, name: bytes) -> Any:
    from h5py import h5o

    return h5o.open(group, name)


def _address(found: Any) -> Any:
    """Where an object's header lies. h5o.get_info tells it too, but also walks the object's heaps to size them."""
    from h5py import h5g

    return h5g.get_objinfo(found, b".").objno


def describe(file: File, dataset: Any, name: str, dtype: str = "") -> Payload:
    """Where the values of an open dataset lie; DumpError says why they cannot be read.

    `dtype` is the dump's word for elements of one byte: writers keep bool and uint8 as int8.
    """
    with _told(file.path):
        direct = _require_own_bytes(file.path, dataset)
        found, byteorder = _dtype(file.path, dataset)
        shape = _shape(file.path, dataset)
        needed = payload_bytes(file.path, shape, DTYPES[found].itemsize)
        _require_stored(file, dataset, shape, needed)
        offset = dataset.get_offset() if direct and needed else None
    if dtype in DTYPES and found in ("int8", "uint8") and DTYPES[dtype].itemsize == 1:
        found = dtype
    if offset is None:
        return Payload(file.path, found, shape, 0, byteorder=byteorder, dataset=name if needed else "")
    if not 0 <= offset <= file.size - needed:
        raise DumpError(file.path, f"its values do not lie in the file, which ends at {file.size}", offset)
    return Payload(file.path, found, shape, offset, byteorder=byteorder)


def strided(payload: Payload, strides: Sequence[int]) -> Payload:
    """The same elements where the dump wrote them in another than the C order; DumpError if they are not all there."""
    shape = payload.shape
    if len(strides) != len(shape) or any(stride < 0 for stride in strides):
        raise DumpError(payload.path, f"strides {list(strides)} do not fit shape {list(shape)}")
    if reach(shape, strides) > math.prod(shape):
        kept = math.prod(shape)
        raise DumpError(payload.path, f"strides {list(strides)} reach beyond the {kept} elements that were kept")
    steps = compact(shape, strides)
    if steps and payload.dataset:
        raise DumpError(payload.path, "unsupported: strides of a dataset that does not lie in one piece")
    return payload._replace(strides=steps)


def _require_own_bytes(path: str, dataset: Any) -> bool:
    """DumpError for values in other files or packed by a filter that is not read; whether they lie in one piece.

    Asked first of all, of the creation properties: a virtual dataset opens its sources to tell its shape.
    """
    from h5py import h5d

    properties = dataset.get_create_plist()
    layout = properties.get_layout()
    if layout == h5d.VIRTUAL:
        raise DumpError(path, "refused: a virtual dataset, made of other files")
    if properties.get_external_count():
        raise DumpError(path, "refused: external storage, its values lie in other files")
    for code, _ in _filters(properties):
        if code not in _UNPACK:
            word = _OTHER_FILTERS.get(code, "unknown")
            raise DumpError(path, f"unsupported: packed by filter {code} ({word}); unpack with h5repack -f NONE")
    return bool(layout == h5d.CONTIGUOUS)


def _filters(properties: Any) -> list[tuple[int, tuple[int, ...]]]:
    """(number, parameters) of the filters in the order in which they packed a chunk."""
    found = [properties.get_filter(index) for index in range(properties.get_nfilters())]
    return [(one[0], tuple(one[2])) for one in found]


def _dtype(path: str, dataset: Any) -> tuple[str, str]:
    """Canonical name and byte order; DumpError for elements that are not plain numbers in their usual bytes."""
    from h5py import h5t

    kind = dataset.get_type()
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

    names = (
        "INTEGER",
        "FLOAT",
        "TIME",
        "STRING",
        "BITFIELD",
        "OPAQUE",
        "COMPOUND",
        "REFERENCE",
        "ENUM",
        "VLEN",
        "ARRAY",
    )
    words = {getattr(h5t, name, None): name.lower() for name in names}
    return f"{words.get(kind.get_class(), 'unknown')} of {kind.get_size()} bytes"


def _shape(path: str, dataset: Any) -> tuple[int, ...]:
    from h5py import h5s

    space = dataset.get_space()
    if space.get_simple_extent_type() == h5s.NULL:
        raise DumpError(path, "holds nothing: its data space is null")
    return tuple(int(dim) for dim in space.get_simple_extent_dims())


def _require_stored(file: File, dataset: Any, shape: Sequence[int], needed: int) -> None:
    """DumpError if the file cannot hold what the shape promises."""
    if not needed:
        return
    stored = min(int(dataset.get_storage_size()), file.size)
    if not stored:
        raise DumpError(file.path, "was never written: the file holds no values of it")
    chunk = _chunk(dataset)
    if not chunk and needed > stored:
        raise DumpError(file.path, f"holds {stored} bytes of data, its shape promises {needed}")
    if chunk and not file.whole:
        raise DumpError(file.path, "unsupported before HDF5 2.0: chunks in a file with a user block")
    if chunk:
        needed = _chunked_bytes(file.path, dataset, shape, chunk)
    if needed > _RATIO * stored + _SLACK:
        raise DumpError(file.path, f"{needed} bytes unpacked from {stored}, more than packing explains")


def _chunk(dataset: Any) -> tuple[int, ...]:
    """Shape of a chunk, () of a dataset that has none."""
    from h5py import h5d

    properties = dataset.get_create_plist()
    return tuple(properties.get_chunk()) if properties.get_layout() == h5d.CHUNKED else ()


def _chunked_bytes(path: str, dataset: Any, shape: Sequence[int], chunk: Sequence[int]) -> int:
    """Bytes that reading all chunks unpacks; all must have been written, fill values are nobody's result."""
    size = math.prod(chunk) * int(dataset.get_type().get_size())
    if len(chunk) != len(shape) or not 0 < size <= _CHUNK:
        raise DumpError(path, f"chunks of {size} bytes in {len(chunk)} dimensions; at most {_CHUNK} are read")
    needed = math.prod(-(-dim // step) for dim, step in zip(shape, chunk))
    written = dataset.get_num_chunks()
    if written < needed:
        raise DumpError(path, f"was not wholly written: {written} of {needed} chunks are in the file")
    return needed * size


def integers(file: File, dataset: Any, name: bytes, most: int = 64) -> tuple[int, ...]:
    """An attribute of one or a few whole numbers; () if there is none, or it is something else."""
    from h5py import h5a, h5s, h5t

    with _told(file.path):
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


def pieces(payload: Payload, elements: int) -> Iterator[Array]:
    """The values of a dataset that does not lie in one piece: 1-D arrays in logical C order, in native byte order.

    One slab of about `elements` is in memory at a time, or one row of chunks where that is more.
    """
    with opened(payload.path) as file:
        with _told(file.path):
            dataset = _find(file, payload.dataset)
        if describe(file, dataset, payload.dataset, payload.dtype) != payload:
            raise DumpError(file.path, f"changed since it was opened: {payload.dataset}")
        yield from _pieces(file, dataset, payload, elements)


def _pieces(file: File, dataset: Any, payload: Payload, elements: int) -> Iterator[Array]:
    with _told(file.path):
        chunk = _chunk(dataset)
    if not chunk:
        with _told(file.path):
            values = _values(payload, _compact(dataset, payload))
        yield values
        return
    chunks = _Chunks(file, dataset, payload)
    itemsize = DTYPES[payload.dtype].itemsize
    most = max(_LEAST, min(elements * itemsize, _MOST))
    for start, count in _slabs(payload.shape, chunk, most // itemsize, _ROW // itemsize):
        with _told(file.path):
            values = _values(payload, chunks.box(start, count))
        yield values


def whole(file: File, dataset: Any, payload: Payload) -> Array:
    """All values of a small dataset, with strides or without a place of its own as well."""
    if payload.dataset:
        parts = list(_pieces(file, dataset, payload, math.prod(payload.shape)))
        return np.concatenate(parts).reshape(payload.shape)
    count = math.prod(payload.shape)
    data = file.bytes.read(payload.offset, count * DTYPES[payload.dtype].itemsize)
    return _values(payload, np.frombuffer(data, _bits(payload.dtype))).reshape(payload.shape)


def _find(file: File, name: str) -> Any:
    """The dataset of a name; no link on the way may lead elsewhere, as the file may be another one by now."""
    from h5py import h5d

    found = _open(file.root, b"/")
    for part in name.strip("/").encode("utf-8", "surrogateescape").split(b"/"):
        _require_plain(file.path, part, found.links.get_info(part).type)
        found = _open(found, part)
    if not isinstance(found, h5d.DatasetID):
        raise DumpError(file.path, f"changed since it was opened: {name} is no dataset")
    return found


def _bits(dtype: str) -> Any:
    """A type of the same width that numpy copies without looking at the values."""
    itemsize = DTYPES[dtype].itemsize
    return np.dtype(f"u{itemsize}" if itemsize <= 8 else np.complex128)


def _values(payload: Payload, bits: Array) -> Array:
    """Elements as they lie in the file → one-dimensional, in the type and byte order that values are held in."""
    flat: Array = bits.reshape(-1)
    if payload.dtype == "bool":
        flat = flat != 0  # a byte of 2 would be a bool that equals neither
        return flat
    if payload.byteorder != _NATIVE and flat.itemsize > 1:
        unit = flat.itemsize // 2 if DTYPES[payload.dtype].kind == "c" else flat.itemsize
        flat = flat.view(f"u{unit}").byteswap()
    return flat.view(numpy_dtype(payload.dtype, _NATIVE))


def _compact(dataset: Any, payload: Payload) -> Array:
    """A dataset of less than 64 KiB in its object's header, read in its own type so that nothing is converted."""
    from h5py import h5s

    bits: Array = np.empty(payload.shape, _bits(payload.dtype))
    dataset.read(h5s.ALL, h5s.ALL, bits, dataset.get_type())
    return bits


class _Chunks:
    """Boxes of a chunked dataset. The library finds the packed bytes of a chunk, they are unpacked here."""

    def __init__(self, file: File, dataset: Any, payload: Payload) -> None:
        self._file, self._dataset, self._bits = file, dataset, _bits(payload.dtype)
        with _told(file.path):
            self._chunk = _chunk(dataset)
            self._filters = _filters(dataset.get_create_plist())

    def box(self, start: Sequence[int], count: Sequence[int]) -> Array:
        into: Array = np.empty(tuple(count), self._bits)
        first = [at // step for at, step in zip(start, self._chunk)]
        turns = [-(-(at + n) // step) - low for at, n, step, low in zip(start, count, self._chunk, first)]
        for turn in np.ndindex(*turns):
            corner = tuple((low + index) * step for low, index, step in zip(first, turn, self._chunk))
            lows = [max(at, edge) for at, edge in zip(start, corner)]
            ends = [min(at + n, edge + step) for at, n, edge, step in zip(start, count, corner, self._chunk)]
            source = tuple(slice(low - edge, end - edge) for low, end, edge in zip(lows, ends, corner))
            target = tuple(slice(low - at, end - at) for low, end, at in zip(lows, ends, start))
            into[target] = self._one(corner)[source]
        return into

    def _one(self, corner: tuple[int, ...]) -> Array:
        """One chunk, unpacked; its length is checked."""
        size = math.prod(self._chunk) * self._bits.itemsize
        place = self._dataset.get_chunk_info_by_coord(corner)
        data = self._file.bytes.read(int(place.byte_offset), int(place.size))
        for index in reversed(range(len(self._filters))):
            code, parameters = self._filters[index]
            if not place.filter_mask >> index & 1:
                try:
                    data = _UNPACK[code](data, parameters, size)
                except (ValueError, zlib.error) as error:
                    raise DumpError(self._file.path, f"a chunk at {list(corner)} cannot be unpacked: {error}") from None
        if len(data) != size:
            raise DumpError(self._file.path, f"a chunk at {list(corner)} has {len(data)} bytes unpacked, not {size}")
        return np.frombuffer(data, self._bits).reshape(self._chunk)


def _inflate(data: bytes, _: Sequence[int], size: int) -> bytes:
    """At most a little more than a chunk: a checksum may have been packed with it, or it was packed twice."""
    stream = zlib.decompressobj()
    unpacked = stream.decompress(data, size + size // 8 + 1024)
    if not stream.eof:
        raise ValueError("it is larger than a chunk" if len(unpacked) > size else "it ends early")
    return unpacked


def _unshuffle(data: bytes, parameters: Sequence[int], _: int) -> bytes:
    """All first bytes of the elements, then all second ones …; bytes that fill no element stand at the end."""
    width = parameters[0] if parameters else 1
    if not 1 < width <= len(data):
        return data
    length = len(data) // width * width
    elements: Array = np.frombuffer(data, np.uint8, length).reshape(width, -1).T
    return elements.tobytes() + data[length:]


def _unsum(data: bytes, _: Sequence[int], __: int) -> bytes:
    """Fletcher's checksum over big-endian words of 16 bits, kept as 4 bytes, little endian, at the end."""
    body, kept = data[:-4], int.from_bytes(data[-4:], "little")
    words = np.frombuffer(body + bytes(len(body) % 2), ">u2").astype(np.uint64)
    low = high = 0
    for at in range(0, len(words), 1 << 16):  # so that sums of 16-bit words times their places fit 64 bits
        part = words[at : at + (1 << 16)]
        high += len(part) * low + int((part * np.arange(len(part), 0, -1, dtype=np.uint64)).sum())
        low += int(part.sum())
        low, high = low % 65535, high % 65535
    if kept % 65536 % 65535 != low or (kept >> 16) % 65535 != high:
        raise ValueError("its checksum differs")
    return body


_UNPACK: dict[int, Callable[[bytes, Sequence[int], int], bytes]] = {1: _inflate, 2: _unshuffle, 3: _unsum}


def _slabs(shape: Sequence[int], chunk: Sequence[int], most: int, largest: int) -> Iterator[Box]:
    """(start, count) of boxes that follow each other in C order, at most `most` elements each.

    If a row of chunks is more than that, a box is one such row, so that no chunk is unpacked twice; at most `largest`.
    """
    if not shape:
        yield (), ()
        return
    cut = next((i for i, dim in enumerate(shape) if min(chunk[i], dim) > 1), len(shape) - 1)
    most = max(1, most, min(largest, min(chunk[cut], shape[cut]) * math.prod(shape[cut + 1 :])))
    axis, inner = len(shape) - 1, 1
    while axis > 0 and inner * shape[axis] <= most:
        inner *= shape[axis]
        axis -= 1
    step = max(1, most // inner)
    if step > chunk[axis]:
        step -= step % chunk[axis]
    for outer in np.ndindex(*shape[:axis]):
        for at in range(0, shape[axis], step):
            count = min(step, shape[axis] - at)
            yield (*outer, at, *(0 for _ in shape[axis + 1 :])), (*(1 for _ in outer), count, *shape[axis + 1 :])
