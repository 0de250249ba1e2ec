"""Size limits of what a file may request, and the context of a read: these limits and the folders that may be read.

Limits are checked before anything is allocated or read. They are far above the needs of real dumps and far below what
does harm: a header is a few hundred bytes, a file of torch.save has about ten members, its pickle about forty opcodes.
Each refusal names its limit; --limit sets it.

A workflow makes the context once and passes it on. It is an argument, not a global or a ContextVar, for three reasons:
a file opened by one call must not decide which files the next call may read, threads and processes need no preparation,
and a review notices a reader without it. Few functions need it although there are many readers, because an open file
knows its limits (RegularFile.limits): functions that open files take a context, functions that read from open files do
not. tests/dump/test_context.py finds calls that drop it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Optional

from npucmp.errors import DumpError, UsageError, nearest


@dataclass(frozen=True)
class Limits:
    """The budget of one reader call; sizes in bytes. tensor_bytes bounds the logical size, expanded views included."""

    tensor_bytes: int = 1 << 44
    expanded_bytes: int = 16 << 30  # of a view that repeats stored values: a file of 1 KB could take hours to read
    ndim: int = 64
    header_bytes: int = 1 << 20
    npy_header_bytes: int = 1 << 16
    cann_header_bytes: int = 64 << 20
    members: int = 10_000
    pickle_bytes: int = 4 << 20
    pickle_opcodes: int = 100_000
    pickle_depth: int = 64
    protobuf_fields: int = 100_000
    text_bytes: int = 16 << 20  # one string in a header
    json_bytes: int = 4 << 30  # a dump.json
    statistics_bytes: int = 256 << 20  # a table of statistics
    table_bytes: int = (
        64 << 20
    )  # other lists beside a dump: mapping.csv, IR text, execution order, fusion results; headers of safetensors
    report_bytes: int = 1 << 30  # a table of a report that is read back: a million rows of tensors.csv
    record_bytes: int = 1 << 20  # an overflow record
    graph_bytes: int = 1 << 30  # a graph file
    graph_values: int = 20_000_000  # in memory at a time, about 200 bytes each; 465 operators have 40,000
    graph_depth: int = 64
    links_out: int = 0  # 1: follow links out of a dump
    hdf5_objects: int = 1_000_000
    hdf5_name_bytes: int = 256 << 20  # of all names of a file together
    hdf5_depth: int = 32
    hdf5_chunk_bytes: int = 1 << 30
    hdf5_ratio: int = 1100  # unpacked bytes per stored byte, plus 1 MB; DEFLATE reaches at most 1032
    hdf5_memory: int = 4 << 30  # of the process that lists a file
    hdf5_seconds: int = 10  # of that process, and one more per MB of the file

    def __repr__(self) -> str:
        """Return only the limits that differ from the default, so that a signature stays readable."""
        changed = [one for one in fields(self) if getattr(self, one.name) != one.default]
        return f"Limits({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in changed)})"

    def __hash__(self) -> int:
        """Return a hash of one limit: thousands of files are looked up by their limits, which are rarely changed."""
        return hash(self.tensor_bytes)

    def changed(self, texts: Iterable[str]) -> Limits:
        """Return limits changed by texts of the form "tensor_bytes=32T". K, M, G, T and P are powers of 1024.

        Raises UsageError for an unknown name and for a value that is not a positive number.
        """
        return replace(self, **dict(map(_parse_limit, texts)))

    def require(self, path: object, name: str, size: int, what: str, at: Optional[int] = None) -> None:
        """Raise DumpError if a size that a file requests exceeds the named limit; {} in `what` becomes the size."""
        if size > getattr(self, name):
            raise DumpError(path, self.limit_message(what.format(size), name), at)

    def limit_message(self, what: str, name: str) -> str:
        """Return the message for a size that exceeds a limit."""
        return f"{what}, more than the limit {name} of {getattr(self, name):,}; raise it with --limit {name}=…"


NAMES = tuple(field.name for field in fields(Limits))
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


def _parse_limit(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    name = name.strip()
    if name not in NAMES:
        raise UsageError(f"--limit {text}: no limit {name!r}", nearest(name, NAMES) or NAMES)
    found = re.fullmatch(r"\s*([0-9]{1,18})\s*([KMGTP]?)(?:i?B)?\s*", value, re.IGNORECASE)
    if not found or not int(found[1]):
        raise UsageError(f"--limit {text}: needs a positive number, for example --limit tensor_bytes=32T")
    return name, int(found[1]) * _UNITS[found[2].upper()]


def tensor_size(path: object, shape: Sequence[object], itemsize: int, limits: Limits) -> int:
    """Return the bytes of a C-contiguous tensor, in Python integers: numpy would wrap around or try to allocate."""
    limits.require(path, "ndim", len(shape), "{} dimensions")
    size = itemsize
    for dim in shape:
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise DumpError(path, f"a dimension is not an integer but {type(dim).__name__}")
        if dim < 0:
            raise DumpError(path, "a dimension is negative")
        if dim > limits.tensor_bytes:
            raise DumpError(path, limits.limit_message(f"a dimension of {_amount(dim)}", "tensor_bytes"))
        size *= dim
    if size > limits.tensor_bytes:
        raise DumpError(path, limits.limit_message(f"a tensor of {_amount(size)} bytes", "tensor_bytes"))
    return size


def is_countable(shape: Sequence[int]) -> bool:
    """Return whether the element count fits in 64 bits.

    Recorded shapes need no file that holds them, and figures computed from larger ones exceed the range of a float.
    """
    return math.prod(shape) < 1 << 63


def _amount(size: int) -> str:
    """Format a size of up to 64 dimensions; 2**63 and more is formatted as a power."""
    return f"{size:,}" if size < 1 << 63 else f"2^{size.bit_length() - 1}"


class DumpFolder(NamedTuple):
    """The folder of a dump: the path given by the user, and the path after all links are resolved."""

    named: str
    real: str


@dataclass(frozen=True)
class ReadContext:
    """Limits and the dumps that are read. Files below a dump are not read through links that lead out of all dumps.

    Frozen, hashable and picklable. A context without roots confines nothing; it serves for the user's own files.
    """

    limits: Limits = Limits()
    roots: tuple[DumpFolder, ...] = ()

    def confine(self, *dumps: str | os.PathLike[str]) -> ReadContext:
        """Return the same context, confined to these dumps too.

        The given path may be a link or contain links, because the user chose it. For a file, its folder is the dump.
        """
        found = dict.fromkeys(self.roots)
        for dump in dumps:
            path = os.path.abspath(dump)
            if not os.path.isdir(path):
                found[DumpFolder(path, os.path.realpath(path))] = None
                path = os.path.dirname(path)
            found[DumpFolder(path, os.path.realpath(path))] = None
        return replace(self, roots=tuple(found))


ANYWHERE = ReadContext()  # default limits, no confinement
