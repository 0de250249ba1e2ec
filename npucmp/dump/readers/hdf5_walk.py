"""What the HDF5 library finds in a file, as plain facts. It is called from here and nowhere else.

The library trusts what it reads: damaged files have made it crash, loop and allocate without end. hdf5_child.py runs
this in a process of its own; hdf5.py starts that, and reads the values.

    {"at": parts}                           what comes next, flushed: where the library was if it did not come back
    {"parts", "group": true}                a group, before what it holds
    {"parts", "problem"}                    an object that is not entered
    {"parts", "attributes", …}              a dataset: "problem" or
        "dtype", "order", "shape"           of its elements
        "offset"                            of values that lie in one piece
        "data"                              those that lie in the object's header, in base 64
        "chunk", "filters", "table"         boxes of one shape, and offset, bytes and filter mask of each, in C order
    {"end": {"soft", "again", "tracked"}}   the last one
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional

import numpy as np

from npucmp.dump.readers.files import RegularFile, open_regular
from npucmp.dump.readers.limits import DEFAULT, beyond, payload_bytes
from npucmp.errors import DumpError, MissingExtra, NpucmpError
from npucmp.model.dtypes import DTYPES

Fact = dict[str, Any]

FILTERS = (1, 2, 3)  # deflate, shuffle, fletcher32: unpacked in hdf5.py
_OTHER_FILTERS = {4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32001: "blosc", 32004: "lz4", 32015: "zstd"}
_SLACK = 1 << 20
_BFLOAT16 = (2, (15, 7, 8, 0, 7), 127)  # bytes; places of sign, exponent, its width, mantissa, its width; bias


class File(NamedTuple):
    """An open file: as h5py knows it, and as bytes. `whole` is whether the addresses of chunks count from byte 0."""

    path: str
    bytes: RegularFile
    root: Any
    whole: bool = True

    @property
    def size(self) -> int:
        return self.bytes.size


class Found(NamedTuple):
    """One named object. `dataset` is open while the walk stands at it; `problem` says why it is not followed."""

    parts: tuple[str, ...]
    dataset: Any = None
    problem: str = ""


def facts(path: str, attributes: Sequence[str]) -> Iterator[Fact]:
    """All of a file, in the order of Walk; of the attributes of these names, whole numbers.

    Raises DumpError for a file that cannot be opened, MissingExtra without h5py.
    """
    with opened(path) as file:
        walk = Walk(file)
        for found in walk:
            if found.dataset is not None:
                yield {"at": found.parts}
                yield {"parts": found.parts, **_dataset(file, found.dataset, attributes)}
            elif found.problem:
                yield {"parts": found.parts, "problem": found.problem}
            else:
                yield {"at": found.parts}
                yield {"parts": found.parts, "group": True}
        yield {"end": {"soft": walk.soft, "again": walk.again, "tracked": walk.tracked}}


def _dataset(file: File, dataset: Any, attributes: Sequence[str]) -> Fact:
    kept = {name: _attribute(file, dataset, name.encode()) for name in attributes}
    try:
        with _told(file.path):
            return {"attributes": kept, **_place(file, dataset)}
    except DumpError as error:
        return {"attributes": kept, "problem": error.because}


def _attribute(file: File, dataset: Any, name: bytes) -> list[int]:
    """One that is damaged is as good as none."""
    try:
        return list(integers(file, dataset, name))
    except DumpError:
        return []


def _place(file: File, dataset: Any) -> Fact:
    """Where the values of a dataset lie; DumpError says why they cannot be read."""
    direct = _require_own_bytes(file.path, dataset)
    dtype, order = _dtype(file.path, dataset)
    shape = _shape(file.path, dataset)
    needed = payload_bytes(file.path, shape, DTYPES[dtype].itemsize)
    _require_stored(file, dataset, shape, needed)
    kind = {"dtype": dtype, "order": order, "shape": shape}
    if not needed:
        return kind
    if direct:
        offset = dataset.get_offset()
        if not 0 <= offset <= file.size - needed:
            raise DumpError(file.path, f"its values do not lie in the file, which ends at {file.size} (byte {offset})")
        return {**kind, "offset": int(offset)}
    chunk = _chunk(dataset)
    if not chunk:
        return {**kind, "data": b64encode(_compact(dataset, shape)).decode()}
    packed = _filters(dataset.get_create_plist())
    return {**kind, "chunk": chunk, "filters": packed, "table": _table(file.path, dataset, shape, chunk)}


def _table(path: str, dataset: Any, shape: Sequence[int], chunk: Sequence[int]) -> list[int]:
    """Offset, bytes and filter mask of each chunk, one after the other, in C order; DumpError if one is missing."""
    grid = [-(-dim // step) for dim, step in zip(shape, chunk)]
    table: list[int] = []
    if not hasattr(dataset, "chunk_iter"):  # h5py before 3.8
        for turn in np.ndindex(*grid):
            info = dataset.get_chunk_info_by_coord(tuple(at * step for at, step in zip(turn, chunk)))
            table += (int(info.byte_offset), int(info.size), int(info.filter_mask))
        return table
    places: dict[int, tuple[int, int, int]] = {}

    def take(info: Any) -> None:
        turn = [at // step for at, step in zip(info.chunk_offset, chunk)]
        if all(at < most for at, most in zip(turn, grid)):
            places[_flat(turn, grid)] = int(info.byte_offset), int(info.size), int(info.filter_mask)

    dataset.chunk_iter(take)
    if len(places) < math.prod(grid):
        raise DumpError(path, f"was not wholly written: {len(places)} of {math.prod(grid)} chunks are in the file")
    for index in range(math.prod(grid)):
        table += places[index]
    return table


def _flat(turn: Sequence[int], grid: Sequence[int]) -> int:
    index = 0
    for at, most in zip(turn, grid):
        index = index * most + at
    return index


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
    except MemoryError:
        raise DumpError(path, beyond("memory that HDF5 wants for it", "hdf5_memory")) from None
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

    def __iter__(self) -> Iterator[Found]:
        with _told(self._file.path):
            root = _open(self._file.root, b"/")
            self._seen.add(_address(root))
        yield from self._group(root, ())

    def _group(self, group: Any, parts: tuple[str, ...]) -> Iterator[Found]:
        try:
            links = self._links(group)
        except DumpError as error:
            if not parts:
                raise
            yield Found(parts, problem=error.because)
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
            if self._count > DEFAULT.hdf5_objects:
                return beyond("objects in a file", "hdf5_objects")
            return beyond("bytes of names", "hdf5_name_bytes") if self._names > DEFAULT.hdf5_name_bytes else None

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

    def _link(self, group: Any, name: bytes, kind: int, parts: tuple[str, ...]) -> Iterator[Found]:
        from h5py import h5d, h5g, h5l

        if kind == h5l.TYPE_SOFT:
            self.soft += 1
            return
        try:
            _require_plain(self._file.path, name, kind)
            if len(parts) > DEFAULT.hdf5_depth:
                raise DumpError(self._file.path, beyond("groups in groups", "hdf5_depth"))
            with _told(self._file.path):
                found = _open(group, name)
                address = _address(found)
        except DumpError as error:
            yield Found(parts, problem=error.because)
            return
        if isinstance(found, h5d.DatasetID):
            yield Found(parts, found)
        elif isinstance(found, h5g.GroupID):
            if address in self._seen:
                self.again += 1
                return
            self._seen.add(address)
            yield Found(parts)
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
        if code not in FILTERS:
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
    if needed > DEFAULT.hdf5_ratio * stored + _SLACK:
        raise DumpError(file.path, beyond(f"{needed:,} bytes unpacked from {stored:,}", "hdf5_ratio"))


def _chunk(dataset: Any) -> tuple[int, ...]:
    """Shape of a chunk, () of a dataset that has none."""
    from h5py import h5d

    properties = dataset.get_create_plist()
    return tuple(properties.get_chunk()) if properties.get_layout() == h5d.CHUNKED else ()


def _chunked_bytes(path: str, dataset: Any, shape: Sequence[int], chunk: Sequence[int]) -> int:
    """Bytes that reading all chunks unpacks; all must have been written, fill values are nobody's result."""
    size = math.prod(chunk) * int(dataset.get_type().get_size())
    if len(chunk) != len(shape) or size < 1:
        raise DumpError(path, f"chunks of {size} bytes in {len(chunk)} dimensions")
    if size > DEFAULT.hdf5_chunk_bytes:
        raise DumpError(path, beyond(f"chunks of {size:,} bytes", "hdf5_chunk_bytes"))
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


def _compact(dataset: Any, shape: Sequence[int]) -> Any:
    """A dataset of less than 64 KiB in its object's header, read in its own type so that nothing is converted."""
    from h5py import h5s

    found = np.empty(shape, f"V{dataset.get_type().get_size()}")
    dataset.read(h5s.ALL, h5s.ALL, found, dataset.get_type())
    return found.tobytes()
