"""Read HDF5 files, a tree of groups and datasets, through h5py; the content is not trusted.

    superblock at byte 0, behind a user block at 512, 1024 …: 89 48 44 46 0D 0A 1A 0A ("\\x89HDF\\r\\n\\x1a\\n")

    link in a group       hard            followed; a group that was visited before is not entered again
                          soft            counted, not followed: its target has a hard link of its own
                          external        refused: another file
    layout of a dataset   contiguous      at one place of the file: its values are read without HDF5
                          compact         in the object's header
                          chunked         in boxes of one shape, optionally packed by filters: unpacked here
                          virtual, external storage     refused: other files
    elements              numbers and h5py's bool; text, references, compounds, enumerations, arrays are refused

    filters               1 deflate, 2 shuffle, 3 fletcher32; others are refused

The library lists a file in a separate process (hdf5_child.py), because a damaged file may make it crash, loop or
allocate without end; the result then is a DumpError or one row. The claims of a dataset are compared with the stored
bytes before anything is allocated or unpacked. For an unknown filter, the library would load code from its plug-in
folder: such datasets are refused first.
Chunks are unpacked here, because the library trusts the lengths in a damaged file: if a chunk unpacks to too few bytes,
HDF5 2.0 returns uninitialised memory; a chunk of two bytes with a checksum ends the process. Reading through the
library, in that process and with each chunk checked first, was implemented and measured: more code, and slower.
Source: HDF5 File Format Specification 3.0 (support.hdfgroup.org); DEFLATE packs at most 1032 to 1 (zlib.net).
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from npucmp.dump.limits import ANYWHERE, Limits, ReadContext
from npucmp.dump.readers import hdf5_child
from npucmp.dump.readers.decode import native
from npucmp.dump.readers.hdf5_dataset import Fact
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.dump.readers.strides import compact, reach
from npucmp.errors import DumpError, MissingExtra, SystemFailure
from npucmp.model import Payload
from npucmp.model.dtypes import DTYPES

Array = NDArray[Any]
Box = tuple[tuple[int, ...], tuple[int, ...]]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
ISOLATED = True  # False: the library works in this process
ATTRIBUTES = ("Type", "DataType", "DeviceType", "Stride")  # those of PyTorch 1.5 for Ascend
_PLACES = (0, 512, 1024, 2048)
_LEAST, _MOST = 1 << 20, 64 << 20  # bytes of one slab, unless one row of chunks is larger
_ROW = 1 << 30  # a larger row of chunks is unpacked more than once
_PATIENCE = 10  # seconds of wall time for each second of processor time


class ChunkLayout(NamedTuple):
    """The place of values that are not contiguous: boxes of one shape (offset, bytes, filter mask each), or `data`."""

    chunk: tuple[int, ...] = ()
    filters: tuple[tuple[int, tuple[int, ...]], ...] = ()
    table: Optional[Array] = None
    data: bytes = b""


class Entry(NamedTuple):
    """One named object. `payload` and `attributes` belong to a dataset; `problem` states why it is not read."""

    parts: tuple[str, ...]
    problem: str = ""
    is_dataset: bool = False
    payload: Optional[Payload] = None
    attributes: Mapping[str, Sequence[int]] = {}
    stored: Optional[ChunkLayout] = None

    @property
    def name(self) -> str:
        return "/" + "/".join(self.parts)


class FileListing(NamedTuple):
    """The content of a file, in the order of the dump: groups before their members, each group once.

    soft counts the skipped soft links, again the further names of groups; tracked is whether the file keeps the order
    of creation.
    """

    entries: Mapping[str, Entry]
    soft: int = 0
    again: int = 0
    tracked: bool = True


def is_hdf5(path: str, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a regular file has the signature at one of its allowed offsets. Raises SystemFailure."""
    try:
        with open_regular(path, context) as file:
            ends = [place for place in _PLACES if place + len(SIGNATURE) <= file.size]
            return any(file.read(place, len(SIGNATURE)) == SIGNATURE for place in ends)
    except SystemFailure:
        raise
    except DumpError:
        return False


def entries_of(path: str, context: ReadContext = ANYWHERE) -> FileListing:
    """List the present content of a file. Raises MissingExtra without h5py, DumpError if nothing can be read."""
    with open_regular(path, context):  # a regular file, or a DumpError
        found = os.stat(path)
    return _listing(path, (found.st_size, found.st_mtime_ns, found.st_ino), context.limits, ISOLATED)


@lru_cache(maxsize=64)  # files of a dump are listed once, and read later
def _listing(path: str, state: tuple[int, ...], limits: Limits, isolated: bool) -> FileListing:
    entries: dict[str, Entry] = {}
    facts = _from_child(path, state[0], limits) if isolated else hdf5_child.facts(path, ATTRIBUTES, limits)
    end: Mapping[str, Any] = {}
    for fact in facts:
        if "end" in fact:
            end = fact["end"]
        elif "at" not in fact:  # a progress line of the child, if it runs in this process
            entry = _entry(path, fact)
            entries[entry.name] = entry
    return FileListing(entries, **end)


def _entry(path: str, fact: Fact) -> Entry:
    parts = tuple(fact["parts"])
    problem = fact.get("problem", "")
    if "attributes" not in fact or problem:
        return Entry(parts, problem, "attributes" in fact, attributes=fact.get("attributes", {}))
    shape, offset = tuple(fact["shape"]), fact.get("offset")
    stored = None
    if "chunk" in fact:
        packed = tuple((code, tuple(parameters)) for code, parameters in fact["filters"])
        stored = ChunkLayout(tuple(fact["chunk"]), packed, np.array(fact["table"], np.int64).reshape(-1, 3))
    elif "data" in fact:
        stored = ChunkLayout(data=b64decode(fact["data"]))
    name = "/" + "/".join(parts) if stored else ""
    payload = Payload(path, fact["dtype"], shape, offset or 0, byteorder=fact["order"], dataset=name)
    return Entry(parts, "", True, payload, fact["attributes"], stored)


def _from_child(path: str, size: int, limits: Limits) -> Iterator[Fact]:
    """Yield the facts of a file from a separate process; an early end of that process becomes the last fact."""
    seconds = limits.hdf5_seconds + (size >> 20)
    call = os.path.realpath(path), ATTRIBUTES, asdict(limits), seconds
    # The same import path as here and no other: the working directory may be the dump.
    where = [os.path.abspath(place) for place in sys.path]
    code = f"import sys; sys.path[:] = {where!r}; import npucmp.dump.readers.hdf5_child as c; c.write_facts(*{call!r})"
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "HDF5_PLUGIN_PRELOAD": "::", "HDF5_USE_FILE_LOCKING": "FALSE"}
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # this process handles Ctrl-C and ends the child
    )
    clock = threading.Timer(seconds * _PATIENCE, child.kill)
    clock.daemon = True
    clock.start()
    at = b""  # the last place that the child announced
    because = ""
    ended = False
    try:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(b'{"at":') and line.endswith(b"\n"):  # half of all lines: only the last is needed
                at = line
            if line is at or not line.endswith(b"\n"):
                continue
            fact: Fact = json.loads(line.decode())
            if "missing" in fact:
                raise MissingExtra(fact["missing"], f"reading {path}")
            if "error" in fact:
                because = fact["error"]
                break
            ended = "end" in fact
            yield fact
        child.wait()  # bounded by the clock
    finally:
        clock.cancel()
        if child.poll() is None:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if not ended:
        because = because or _end_of(child.returncode, seconds, limits)
        place: Sequence[str] = json.loads(at)["at"] if at else ()
        if not place:
            raise DumpError(path, because)
        yield {"parts": place, "problem": f"{because}; the rest is not read"}


def _end_of(status: int, seconds: int, limits: Limits) -> str:
    if status in (-signal.SIGKILL, -getattr(signal, "SIGXCPU", 0)):
        return limits.limit_message(f"HDF5 did not finish within {seconds} seconds", "hdf5_seconds")
    name = next((one.name for one in signal.Signals if one == -status), f"exit status {status}")
    return f"cannot be read by HDF5: the library crashed ({name})"


def payload_at(entry: Entry, dtype: str = "") -> Payload:
    """Return the place of the values of a dataset; DumpError states why they cannot be read.

    `dtype` is the dump's type name for elements of one byte: writers store bool and uint8 as int8.
    """
    if entry.payload is None:
        raise DumpError(entry.name, entry.problem or "is not a dataset")
    if dtype in DTYPES and entry.payload.dtype in ("int8", "uint8") and DTYPES[dtype].itemsize == 1:
        return entry.payload._replace(dtype=dtype)
    return entry.payload


def with_strides(payload: Payload, strides: Sequence[int]) -> Payload:
    """Return the payload with the strides of the dump; DumpError if they reach beyond the stored elements."""
    shape = payload.shape
    if len(strides) != len(shape) or any(stride < 0 for stride in strides):
        raise DumpError(payload.path, f"strides {list(strides)} do not fit shape {list(shape)}")
    if reach(shape, strides) > math.prod(shape):
        elements = math.prod(shape)
        raise DumpError(payload.path, f"strides {list(strides)} reach beyond the {elements} stored elements")
    steps = compact(shape, strides)
    if steps and payload.dataset:
        raise DumpError(payload.path, "unsupported: strides of a dataset that is not contiguous")
    return payload._replace(strides=steps)


def pieces(payload: Payload, elements: int, context: ReadContext = ANYWHERE) -> Iterator[Array]:
    """Yield the values of a non-contiguous dataset: 1-D arrays in logical C order, in native byte order.

    One slab of about `elements` is in memory at a time, or one row of chunks if that is more.
    """
    entry = entries_of(payload.path, context).entries.get(payload.dataset)
    if entry is not None and entry.problem:
        raise DumpError(payload.path, entry.problem)
    if entry is None or not entry.stored or payload_at(entry, payload.dtype) != payload:
        raise DumpError(payload.path, f"changed since it was opened: {payload.dataset}")
    with open_regular(payload.path, context) as file:
        yield from _pieces(file, entry.stored, payload, elements)


def _pieces(file: RegularFile, stored: ChunkLayout, payload: Payload, elements: int) -> Iterator[Array]:
    if not stored.chunk:
        yield native(stored.data, payload.dtype, payload.byteorder)
        return
    chunks = _Chunks(file, stored, payload)
    itemsize = DTYPES[payload.dtype].itemsize
    most = max(_LEAST, min(elements * itemsize, _MOST))
    for start, count in _slabs(payload.shape, stored.chunk, most // itemsize, _ROW // itemsize):
        yield native(chunks.box(start, count).reshape(-1), payload.dtype, payload.byteorder)


def _bits(dtype: str) -> Any:
    """Return a type of the same width that numpy copies without interpreting the values."""
    itemsize = DTYPES[dtype].itemsize
    return np.dtype(f"u{itemsize}" if itemsize <= 8 else np.complex128)


class _Chunks:
    """Boxes of a chunked dataset, unpacked here."""

    def __init__(self, file: RegularFile, stored: ChunkLayout, payload: Payload) -> None:
        self._file, self._stored, self._bits = file, stored, _bits(payload.dtype)
        self._chunk = stored.chunk
        self._grid = [-(-dim // step) for dim, step in zip(payload.shape, stored.chunk)]

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
        """Return one chunk, unpacked; its length is checked."""
        size = math.prod(self._chunk) * self._bits.itemsize
        index = 0
        for at, step, most in zip(corner, self._chunk, self._grid):
            index = index * most + at // step
        assert self._stored.table is not None
        offset, length, mask = self._stored.table[index].tolist()
        data = self._file.read(offset, length)
        for place, (code, parameters) in reversed(list(enumerate(self._stored.filters))):
            if not mask >> place & 1:
                try:
                    data = _UNPACK[code](data, parameters, size)
                except (ValueError, zlib.error) as error:
                    raise DumpError(self._file.path, f"a chunk at {list(corner)} cannot be unpacked: {error}") from None
        if len(data) != size:
            raise DumpError(self._file.path, f"a chunk at {list(corner)} has {len(data)} bytes unpacked, not {size}")
        return np.frombuffer(data, self._bits).reshape(self._chunk)


def _inflate(data: bytes, _: Sequence[int], size: int) -> bytes:
    """Inflate at most a little more than a chunk: a checksum may be packed with it, or it may be packed twice."""
    stream = zlib.decompressobj()
    unpacked = stream.decompress(data, size + size // 8 + 1024)
    if not stream.eof:
        raise ValueError("it is larger than a chunk" if len(unpacked) > size else "it ends early")
    return unpacked


def _unshuffle(data: bytes, parameters: Sequence[int], _: int) -> bytes:
    """Interleave bytes stored as all first bytes of the elements, then all second bytes …; excess bytes stay at the
    end."""
    width = parameters[0] if parameters else 1
    if not 1 < width <= len(data):
        return data
    length = len(data) // width * width
    elements: Array = np.frombuffer(data, np.uint8, length).reshape(width, -1).T
    return elements.tobytes() + data[length:]


def _unsum(data: bytes, _: Sequence[int], __: int) -> bytes:
    """Check and drop Fletcher's checksum over big-endian 16-bit words, stored as 4 little-endian bytes at the end."""
    body, checksum = data[:-4], int.from_bytes(data[-4:], "little")
    words = np.frombuffer(body + bytes(len(body) % 2), ">u2").astype(np.uint64)
    low = high = 0
    for at in range(0, len(words), 1 << 16):  # blocks keep sums of 16-bit words times their positions within 64 bits
        part = words[at : at + (1 << 16)]
        high += len(part) * low + int((part * np.arange(len(part), 0, -1, dtype=np.uint64)).sum())
        low += int(part.sum())
        low, high = low % 65535, high % 65535
    if checksum % 65536 % 65535 != low or (checksum >> 16) % 65535 != high:
        raise ValueError("its checksum differs")
    return body


_UNPACK: dict[int, Callable[[bytes, Sequence[int], int], bytes]] = {1: _inflate, 2: _unshuffle, 3: _unsum}


def _slabs(shape: Sequence[int], chunk: Sequence[int], most: int, largest: int) -> Iterator[Box]:
    """Yield (start, count) of boxes that follow each other in C order, at most `most` elements each.

    If a row of chunks is larger, a box is one such row of at most `largest` elements, so that no chunk is unpacked
    twice.
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
