"""The process in which the HDF5 library lists a file: the result is printed as lines of JSON on stdout.

    {"at": parts}                           the next object, flushed: the place of the library if it does not return
    {"parts", "group": true}                a group, before its members
    {"parts", "problem"}                    an object that is not entered
    {"parts", "attributes", …}              a dataset: "problem" or
        "dtype", "order", "shape"           of its elements
        "offset"                            of contiguous values
        "data"                              values in the object's header, in base 64
        "chunk", "filters", "table"         boxes of one shape, and offset, bytes and filter mask of each, in C order
    {"end": {"soft", "again", "tracked"}}   the last line

Limits are set before the file is opened: memory and processor seconds, no file written, no core. A crash of the
library affects only this process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from npucmp.dump.limits import Limits
from npucmp.dump.readers.hdf5_dataset import Fact, dataset_facts
from npucmp.dump.readers.hdf5_walk import FileWalk, open_hdf5
from npucmp.errors import DumpError, MissingExtra

_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make an encoder per line


def write_facts(path: str, attributes: list[str], limit_values: dict[str, int], seconds: int) -> None:
    """Write the facts, or {"error": why} or {"missing": package}."""
    limits = Limits(**limit_values)
    out = sys.stdout.buffer
    try:
        import h5py  # noqa: F401, with what it loads, before the limits

        _bound(limits.hdf5_memory, seconds)
        for fact in facts(path, attributes, limits):
            out.write(_line(fact))
            if "at" in fact:
                out.flush()
    except (ImportError, MissingExtra):
        out.write(_line({"missing": "h5py"}))
    except MemoryError:
        out.write(_line({"error": limits.limit_message("memory that HDF5 needs for it", "hdf5_memory")}))
    except DumpError as error:
        out.write(_line({"error": error.because}))
    out.flush()


def facts(path: str, attributes: Sequence[str], limits: Limits) -> Iterator[Fact]:
    """All of a file, in the order of FileWalk; of the attributes of these names, whole numbers.

    Raises DumpError for a file that cannot be opened, MissingExtra without h5py.
    """
    with open_hdf5(path, limits) as file:
        walk = FileWalk(file)
        for met in walk:
            if met.dataset is not None:
                yield {"at": met.parts}
                yield {"parts": met.parts, **dataset_facts(file, met.dataset, attributes)}
            elif met.problem:
                yield {"parts": met.parts, "problem": met.problem}
            else:
                yield {"at": met.parts}
                yield {"parts": met.parts, "group": True}
        yield {"end": {"soft": walk.soft, "again": walk.again, "tracked": walk.tracked}}


def _line(value: Any) -> bytes:
    return _encode(value).encode() + b"\n"


def _bound(memory: int, seconds: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows: the parent's clock is what remains
        return
    for name, value in (("AS", memory), ("CPU", seconds), ("CORE", 0), ("FSIZE", 0), ("NOFILE", 64)):
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:
            _, hard = resource.getrlimit(kind)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, hard))
