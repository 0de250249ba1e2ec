"""Read safetensors files: many tensors by name, without a program in the file.

    offset  bytes  content
    0       8      N, length of the header, little endian
    8       N      JSON: {name: {"dtype": "F32", "shape": [3, 4], "data_offsets": [begin, end]}, "__metadata__": {…}}
    8 + N   *      the values, C order, little endian; begin and end count from here

The data of all tensors covers the rest of the file without gaps and overlaps. Source: huggingface/safetensors. In a
file with {ORDER: "execution"} among its metadata, the places of the tensors are in the order of execution, as
`write_tensors` writes them.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO, Mapping, Union

from npucmp.dump.limits import tensor_size
from npucmp.dump.readers.safe_open import RegularFile
from npucmp.dump.readers.text import json_object, text_of
from npucmp.errors import DumpError
from npucmp.model import Payload
from npucmp.model.dtypes import DTYPES

_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0", "C64": "complex64",
}  # fmt: skip
WORDS = {dtype: word for word, dtype in _DTYPES.items()}
ORDER = "npucmp.order"
_DIGITS = 18  # of a size or an offset
_KEYS = {"dtype", "shape", "data_offsets"}


class InOrder(dict[str, Union[Payload, str]]):
    """The entries of a file that records the order of execution."""


def entries(file: RegularFile) -> dict[str, Union[Payload, str]]:
    """Return the payload of each tensor, or why it cannot be read; DumpError for a malformed file."""
    if file.size < 8:
        raise DumpError(file.path, "ended early: shorter than the length of its header")
    length = int.from_bytes(file.read(0, 8), "little")
    file.limits.require(file.path, "table_bytes", length, "a header of {:,} bytes", 0)
    start = 8 + length
    found = json_object(text_of(file.path, file.read(8, length)), file.path, "a safetensors header", _DIGITS)
    metadata = found.pop("__metadata__", None)
    has_order = isinstance(metadata, dict) and metadata.get(ORDER) == "execution"
    place, read = 0, InOrder() if has_order else dict[str, Union[Payload, str]]()
    for name, fact in sorted(found.items(), key=lambda item: _span(file, *item)):
        begin, end = _span(file, name, fact)
        if begin != place:
            raise DumpError(file.path, f"its tensors overlap or leave a gap before {name!a:.60}", start + place)
        place = end
        read[name] = _entry(file, fact, start + begin, end - begin)
    if start + place != file.size:
        raise DumpError(file.path, f"holds {file.size - start} bytes of data, its header promises {place}", start)
    return read


def write_tensors(file: BinaryIO, tensors: Mapping[str, tuple[str, tuple[int, ...], Any]]) -> None:
    """Write tensors (type, shape, values as a buffer) in their order, which is the order of execution."""
    header: dict[str, Any] = {"__metadata__": {ORDER: "execution"}}
    place = 0
    for name, (dtype, shape, data) in tensors.items():
        end = place + memoryview(data).nbytes
        header[name] = {"dtype": WORDS[dtype], "shape": [*shape], "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    file.write(len(text).to_bytes(8, "little") + text)
    for _, _, data in tensors.values():
        file.write(data)


def _span(file: RegularFile, name: str, fact: Any) -> tuple[int, int]:
    """Return begin and end of the values of an entry, after checking the types of its fields."""
    if not isinstance(fact, dict) or fact.keys() != _KEYS or not isinstance(fact["dtype"], str):
        raise DumpError(file.path, f"the header lacks dtype, shape or data_offsets of {name!a:.60}")
    offsets = fact["data_offsets"]
    if not (_counts(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1] and _counts(fact["shape"])):
        raise DumpError(file.path, f"an impossible shape or place of {name!a:.60}")
    return offsets[0], offsets[1]


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def _entry(file: RegularFile, fact: dict[str, Any], offset: int, size: int) -> Union[Payload, str]:
    dtype = DTYPES.get(_DTYPES.get(fact["dtype"], ""))
    if dtype is None:
        return f"unsupported: elements of type {fact['dtype']!a:.40}"
    shape = tuple(fact["shape"])
    try:
        promised = tensor_size(file.path, shape, dtype.itemsize, file.limits)
    except DumpError as error:
        return error.because
    if promised != size:
        return f"holds {size} bytes of data, its shape and type need {promised}"
    return Payload(file.path, dtype.name, shape, offset)
