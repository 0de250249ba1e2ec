"""The process in which the HDF5 library walks a file: hdf5_walk.facts as lines of JSON on stdout.

Bounded before the file is opened: memory and seconds of the processor, no file written, no core. What the library does
to this process ends there.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from npucmp.dump.readers.hdf5_walk import facts
from npucmp.dump.readers.limits import DEFAULT, beyond
from npucmp.errors import DumpError, MissingExtra


def main(path: str, attributes: "list[str]", limits: "dict[str, int]", seconds: int) -> None:
    """Writes the facts, or {"error": why} or {"missing": package}."""
    for name, value in limits.items():
        setattr(DEFAULT, name, value)
    out = sys.stdout.buffer
    try:
        import h5py  # noqa: F401, with what it loads, before the limits

        _bound(limits["hdf5_memory"], seconds)
        for fact in facts(path, attributes):
            out.write(_line(fact))
            if "at" in fact:
                out.flush()
    except (ImportError, MissingExtra):
        out.write(_line({"missing": "h5py"}))
    except MemoryError:
        out.write(_line({"error": beyond("memory that HDF5 wants for it", "hdf5_memory")}))
    except DumpError as error:
        out.write(_line({"error": error.because}))
    out.flush()


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


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
