"""How much a file may ask for. Checked before anything is allocated or read.

The numbers are far above what real dumps need and far below what hurts: a header is a few hundred bytes, a
file of torch.save has about ten members, its pickle about forty opcodes. Each refusal names its limit; --limit sets it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Optional

from npucmp.errors import DumpError, UsageError


@dataclass(frozen=True)
class Limits:
    """One reader call's budget; sizes in bytes. tensor_bytes bounds the logical size, expanded views included."""

    tensor_bytes: int = 1 << 44
    expanded_bytes: int = 16 << 30  # of a view that repeats what is stored: a file of 1 KB could keep us busy for hours
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
    report_bytes: int = 1 << 30  # a table of a report that is read again: a million rows of tensors.csv
    record_bytes: int = 1 << 20  # an overflow record
    graph_bytes: int = 1 << 30  # a graph file
    graph_values: int = 20_000_000  # held at a time, some 200 bytes each; 465 operators have 40,000
    graph_depth: int = 64
    links_out: int = 0  # 1: links out of a dump are followed
    hdf5_objects: int = 1_000_000
    hdf5_name_bytes: int = 256 << 20  # of all names of a file together
    hdf5_depth: int = 32
    hdf5_chunk_bytes: int = 1 << 30
    hdf5_ratio: int = 1100  # bytes unpacked of one stored, beside 1 MB; DEFLATE packs 1032 to 1
    hdf5_memory: int = 4 << 30  # of the process that lists a file
    hdf5_seconds: int = 10  # of that process, and one more per MB of the file

    def __repr__(self) -> str:
        """What is not as it was meant, so that a signature stays readable."""
        changed = [one for one in fields(self) if getattr(self, one.name) != one.default]
        return f"Limits({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in changed)})"

    def changed(self, texts: Iterable[str]) -> Limits:
        """With limits as a user writes them: "tensor_bytes=32T". K, M, G, T and P are powers of 1024.

        Raises UsageError for a name that is none, or no positive number.
        """
        return replace(self, **dict(map(_parsed, texts)))

    def require(self, path: object, name: str, size: int, what: str, at: Optional[int] = None) -> None:
        """DumpError if a size that a file tells is more than the limit of that name; {} in `what` stands for it."""
        if size > getattr(self, name):
            raise DumpError(path, self.beyond(what.format(size), name), at)

    def beyond(self, what: str, name: str) -> str:
        """What is said of something that is more than a limit."""
        return f"{what}, more than the limit {name} of {getattr(self, name):,}; raise it with --limit {name}=…"


NAMES = tuple(field.name for field in fields(Limits))
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


def _parsed(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    name = name.strip()
    if name not in NAMES:
        raise UsageError(f"--limit {text}: no limit {name!r}", get_close_matches(name, NAMES) or NAMES)
    found = re.fullmatch(r"\s*([0-9]{1,18})\s*([KMGTP]?)(?:i?B)?\s*", value, re.IGNORECASE)
    if not found or not int(found[1]):
        raise UsageError(f"--limit {text}: a positive number is wanted, as in --limit tensor_bytes=32T")
    return name, int(found[1]) * _UNITS[found[2].upper()]


def tensor_size(path: object, shape: Sequence[object], itemsize: int, limits: Limits) -> int:
    """Bytes of a C-contiguous tensor, in Python integers: numpy would wrap around or try to allocate."""
    limits.require(path, "ndim", len(shape), "{} dimensions")
    size = itemsize
    for dim in shape:
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise DumpError(path, f"a dimension is not an integer but {type(dim).__name__}")
        if dim < 0:
            raise DumpError(path, "a dimension is negative")
        if dim > limits.tensor_bytes:
            raise DumpError(path, limits.beyond(f"a dimension of {_amount(dim)}", "tensor_bytes"))
        size *= dim
    if size > limits.tensor_bytes:
        raise DumpError(path, limits.beyond(f"a tensor of {_amount(size)} bytes", "tensor_bytes"))
    return size


def is_countable(shape: Sequence[int]) -> bool:
    """Whether 64 bits count the elements. Recorded shapes need no file that holds them, and figures made of larger
    ones would leave the range of a float."""
    return math.prod(shape) < 1 << 63


def _amount(size: int) -> str:
    """Of up to 64 dimensions; more than 2**63 is shown as a power."""
    return f"{size:,}" if size < 1 << 63 else f"2^{size.bit_length() - 1}"
