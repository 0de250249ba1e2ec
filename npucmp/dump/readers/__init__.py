"""Readers of tensor files: they turn BYTES into header facts and the place of the payload, and know no operators.

    header(encoding, path)   → Payload: dtype, shape and place of the values; the payload itself is not read
    values.blocks(payload)   → the values, block by block

READERS are the encodings of files that hold one tensor each. An encoding is a module of its name in this package with
    header(file) -> Payload     of an open RegularFile
Every reader parses bytes itself, within the limits of the file; nothing that a file names is imported or executed.
A file that violates its format raises DumpError; readers never guess.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from npucmp.dump.limits import ANYWHERE, Limits, ReadContext
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.errors import UnsupportedError
from npucmp.model import Payload

READERS = ("torch_pt", "npy")
_MOST = 1 << 14  # headers that are kept: work: about 8 MB
_headers: dict[tuple[str, Limits, tuple[object, ...]], Payload] = {}


def header(encoding: str, path: str, context: ReadContext = ANYWHERE) -> Payload:
    """Return the facts of one tensor file with the encoding of a TensorRef; DumpError for another kind of file."""
    with open_regular(path, context) as file:
        return header_of(encoding, file)


def header_of(encoding: str, file: RegularFile) -> Payload:
    """Return the facts of an open tensor file. A file that has not changed is parsed once by a process: what aligns,
    measures, recomputes and shows a tensor asks for them."""
    key = encoding, file.limits, file.state
    found = _headers.get(key)
    if found is None:
        found = _reader(encoding).header(file)
        if len(_headers) >= _MOST:
            _headers.clear()
        _headers[key] = found
    return found


@cache
def _reader(encoding: str) -> ModuleType:
    """Load a reader on first use."""
    if encoding not in READERS:
        raise UnsupportedError(f"files of encoding {encoding!r} cannot be read")
    return import_module(f"{__name__}.{encoding}")
