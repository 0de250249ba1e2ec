"""Readers turn BYTES into header facts and the place of the payload; they know no operators.

    header(encoding, path)   → Payload: dtype, shape and where the values lie; the payload itself is not read
    values.blocks(payload)   → the values, block by block

Every reader parses its bytes itself, within the limits of limits.py; nothing that a file names is imported or run.
A file that breaks a rule of its format is a DumpError, never a guess.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from npucmp.dump.readers.files import RegularFile
from npucmp.errors import UnsupportedError
from npucmp.model import Payload

_Reader = Any  # a module with header(path) and header_of(file), both → Payload


def header(encoding: str, path: str) -> Payload:
    """The facts of one tensor file. `encoding` is TensorRef.encoding; each reader is loaded when first met."""
    found: Payload = _reader(encoding).header(path)
    return found


def header_of(encoding: str, file: RegularFile) -> Payload:
    """The same of a file that is open."""
    found: Payload = _reader(encoding).header_of(file)
    return found


@cache
def _reader(encoding: str) -> _Reader:
    if encoding == "torch_pt":
        from npucmp.dump.readers import torch_pt

        return torch_pt
    if encoding == "npy":
        from npucmp.dump.readers import npy

        return npy
    raise UnsupportedError(f"files of encoding {encoding!r} cannot be read")
