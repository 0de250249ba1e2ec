"""Read NPY files: one array each, written by numpy.save, MindSpore, ONNX Runtime, TensorFlow tools.

    offset  bytes  content
    0       6      93 4E 55 4D 50 59 ("\\x93NUMPY")
    6       2      version: 1.0, 2.0 or 3.0
    8       2 | 4  length H of the header text, little endian; 4 bytes from version 2.0 on
    10 | 12 H      header text: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, blanks, newline;
                   latin-1, from version 3.0 on UTF-8
    …       *      product(shape) · itemsize bytes and nothing after them

Source: numpy.lib.format, NEP 1. numpy.load is not used: it allocates the size of the shape before it checks the
file, and it accepts bytes after the array and |V0 arrays of 10**18 elements.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import NamedTuple, Union

from npucmp.dump.limits import Limits, tensor_size
from npucmp.dump.readers.safe_open import FileSlice, RegularFile
from npucmp.dump.readers.strides import compact, fortran_strides
from npucmp.errors import DumpError
from npucmp.model import Payload
from npucmp.model.dtypes import DTYPES

_MAGIC = b"\x93NUMPY"
_FIRST_READ = 1024  # larger than any header up to rank 50, so that one read is enough
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
_KEYS = {"descr", "fortran_order", "shape"}
_DESCR = re.compile(r"([<>|])([biufc])([1-9]\d?)", re.ASCII)
_ORDINARY = re.compile(r"[\w\s,]+")
_SIGNS = 100
_WARNS = re.compile(r"\\|\d[A-Za-z_]")
_WORDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}


class _Header(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    byteorder: str
    promised: int  # bytes of the values


class _Bad(Exception):
    """The defect of a header text; header() adds the path."""


def header(file: Union[RegularFile, FileSlice]) -> Payload:
    """Return the facts of the array in an NPY file; the payload is not read. DumpError for a malformed file."""
    text, offset = _header_text(file)
    try:
        found = _parse(text, file.limits) if len(text) <= _FIRST_READ else _parse.__wrapped__(text, file.limits)
    except _Bad as bad:
        raise DumpError(file.path, str(bad), offset - len(text)) from None
    except DumpError as error:
        raise DumpError(file.path, error.because) from None
    held = file.size - offset
    if held != found.promised:
        raise DumpError(file.path, f"holds {held} bytes of data, its header promises {found.promised}", offset)
    return Payload(file.path, found.dtype, found.shape, offset, found.strides, found.byteorder)


def _header_text(file: Union[RegularFile, FileSlice]) -> tuple[bytes, int]:
    """Return the version byte with the header text, and the offset of the data."""
    start = file.read(0, min(_FIRST_READ, file.size))
    if not start.startswith(_MAGIC) or len(start) < 8:
        raise DumpError(file.path, "not an NPY file", 0)
    width = _LENGTH_BYTES.get((start[6], start[7]))
    if width is None:
        raise DumpError(file.path, f"unsupported: NPY version {start[6]}.{start[7]}", 6)
    length = int.from_bytes(start[8 : 8 + width] if len(start) >= 8 + width else file.read(8, width), "little")
    file.limits.require(file.path, "npy_header_bytes", length, "a header of {} bytes", 8)
    end = 8 + width + length
    return start[6:7] + (start[8 + width : end] if end <= len(start) else file.read(8 + width, length)), end


@lru_cache(maxsize=1024)  # the tensors of a dump share a few header texts
def _parse(versioned: bytes, limits: Limits) -> _Header:
    text = versioned[1:].decode("utf-8" if versioned[0] >= 3 else "latin-1", "replace").strip()
    # A plain header has 17 signs. Chains of operators and brackets recurse in the parsers of older Pythons;
    # a backslash or a number joined to a word may make any version print a warning.
    if len(_ORDINARY.sub("", text)) > _SIGNS or _WARNS.search(text):
        raise _Bad("not a plain header: a structured type, or damaged")
    try:
        tree = ast.parse(text, mode="eval").body
        fields = ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise _Bad("the header is not a Python dictionary") from None
    if not isinstance(tree, ast.Dict) or len(tree.keys) != len(_KEYS) or set(fields) != _KEYS:  # no key twice
        raise _Bad("the header must have exactly the keys descr, fortran_order and shape")
    if not isinstance(fields["fortran_order"], bool) or not isinstance(fields["shape"], tuple):
        raise _Bad("fortran_order must be True or False and shape a tuple")
    dtype, byteorder = _dtype(fields["descr"])
    shape = fields["shape"]
    promised = tensor_size("", shape, DTYPES[dtype].itemsize, limits)
    strides = compact(shape, fortran_strides(shape)) if fields["fortran_order"] else ()
    return _Header(dtype, shape, strides, byteorder, promised)


def _dtype(descr: object) -> tuple[str, str]:
    """Return canonical name and byte order of a descr like '<f4'."""
    if not isinstance(descr, str):
        raise _Bad("unsupported: a structured type")
    if "O" in descr:
        raise _Bad("unsupported: Python objects (descr '|O'), which only the pickle module could read")
    match = _DESCR.fullmatch(descr)
    name = f"{_WORDS[match[2]]}{int(match[3]) * 8}" if match else ""
    name = "bool" if name == "bool8" else name
    if match is None or name not in DTYPES or DTYPES[name].memory:  # numpy has no '<c4'
        raise _Bad(f"unsupported: elements of type {_escape(descr)}{_hint(descr)}")
    if match[1] == "|" and DTYPES[name].itemsize > 1:
        raise _Bad(f"the type {_escape(descr)} has no byte order")
    return name, ">" if match[1] == ">" else "<"


def _hint(descr: str) -> str:
    if "V" in descr:
        # numpy.save writes bfloat16 of ml_dtypes as '<V2', and most 8-bit floats and integers of ml_dtypes as '<V1'.
        return ", bytes without a type; save bfloat16 and float8 as float32"
    return ", extended precision of one machine" if descr[1:] in ("f12", "f16", "c24", "c32") else ""


def _escape(text: str) -> str:
    return ascii(text[:40])
