"""Readers turn BYTES into header facts and the place of the payload; they know no operators.

    header(encoding, path)   → Payload: dtype, shape and where the values lie; the payload itself is not read
    values.blocks(payload)   → the values, block by block

READERS are the encodings of files that hold one tensor each. An encoding is a module of its name in this package with
    header(file) -> Payload     of an open RegularFile
Every reader parses its bytes itself, within the limits of the file; nothing that a file names is imported or run.
A file that breaks a rule of its format is a DumpError, never a guess.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.readers.files import RegularFile, open_regular
from npucmp.errors import UnsupportedError
from npucmp.model import Payload

READERS = ("torch_pt", "npy")


def header(encoding: str, path: str, context: ReadContext = ANYWHERE) -> Payload:
    """The facts of one tensor file; `encoding` is that of a TensorRef. DumpError for a file that is something else."""
    with open_regular(path, context) as file:
        return header_of(encoding, file)


def header_of(encoding: str, file: RegularFile) -> Payload:
    """The same of a file that is open."""
    found: Payload = _reader(encoding).header(file)
    return found


@cache
def _reader(encoding: str) -> ModuleType:
    """Each is loaded when first met."""
    if encoding not in READERS:
        raise UnsupportedError(f"files of encoding {encoding!r} cannot be read")
    return import_module(f"{__name__}.{encoding}")
