"""Attributes of a node that decide its computation; all others are dropped, because they are most of a graph.

GE and TensorFlow spell them alike, `attr { key value }`, in text and JSON as textproto.py has them, and in wire format:

    AttrValue of TensorFlow   1 list · 2 s · 3 i · 4 f · 5 b · 8 tensor
    ListValue                 2 s · 3 i · 4 f · 5 b
    TensorProto               1 dtype · 2 shape · 4 tensor_content · 5 float_val · 7 int_val · 10 int64_val

An element type is kept as its name. A constant of at most MOST numbers (axes of a mean, a shape) is kept as the
attribute `value` of its node. Values in other forms are left out.
Source: attr_value.proto and tensor.proto of TensorFlow, ge_ir.proto of GE; operator prototypes of both.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any, Optional, Union

from npucmp.dump.readers.protobuf import Cursor, WireField, to_signed
from npucmp.dump.readers.textproto import Message

Number = Union[bool, int, float]
Value = Union[Number, str, "tuple[Number, ...]", "tuple[str, ...]"]

MOST, LONGEST = 64, 64  # values of a list, characters of a word
VALUE = "value"  # of a constant
NAMES, PLACES = "_input_name_idx_key", "_input_name_idx_value"  # of the inputs of a GE operator
WANTED = frozenset(
    "strides stride pads pad padding pad_mode pad_list explicit_paddings dilations "
    "dilation groups group data_format format axes axis keep_dims keepdims negative_slope alpha beta transpose "
    "transpose_a transpose_b transpose_x1 transpose_x2 adj_x adj_y adj_x1 adj_x2 bias epsilon eps window ksize "
    "kernel_size mode global_pooling ceil_mode rounding_mode is_training num_output coeff begin_norm_axis "
    "begin_params_axis perm paddings constant_values concat_dim split_dim num_split N dst_type DstT dimension "
    "use_nesterov gradient_scale is_grad approximate exclusive count_include_pad power scale shift min max src_format "
    "dst_format batch_dims squeeze_dims offset_x multiples begin size num_axes reduction sens".split()
) | {NAMES, PLACES}
_CONTENT = {"DT_INT32": "i", "DT_INT64": "q", "DT_FLOAT": "f", 3: "i", 9: "q", 1: "f"}
_BYTE = re.compile(rb"\\x([0-9a-f]{2})")


def is_relevant(message: Message) -> bool:
    """Return whether any part of an attr message is kept; for textproto.parse."""
    keys = message.get("key", ())
    if any(isinstance(key, str) and key in WANTED for key in keys):
        return True
    return VALUE in keys and any("tensor" in one for one in message.get("value", ()) if isinstance(one, dict))


def of_text(value: Message) -> Optional[Value]:
    """Return the value of one attribute; None if it is not kept."""
    tensors = value.get("tensor", ())
    lists = [one for one in value.get("list", ()) if isinstance(one, dict)]
    if tensors:
        return _of_tensor(tensors[0]) if isinstance(tensors[0], dict) else None
    for field in ("s", "i", "f", "b", "dt", "type"):
        if value.get(field):
            return _scalar(field, value[field][0])
    for field in ("i", "f", "b", "s"):
        values = [_scalar(field, one) for part in lists for one in part.get(field, ())]
        if values:
            return _as_value(values)
    return () if lists else None


def of_wire(cursor: Cursor, field: WireField) -> Optional[Value]:
    """Return the value of an AttrValue in wire format; None if it is not kept. Raises DumpError for malformed bytes."""
    for one in cursor.fields(field.start, field.end):
        if one.number == 1 and one.wire == 2:
            values = [value for part in cursor.fields(one.start, one.end) for value in _wire_values(cursor, part)]
            return _as_value(values)
        if one.number == 8 and one.wire == 2:
            return _of_wired_tensor(cursor, one)
        for found in _wire_values(cursor, one):
            return found
    return None


def _scalar(field: str, value: Any) -> Union[Number, str, None]:
    if field in ("s", "dt", "type"):
        return str(value) if isinstance(value, str) and len(value) <= LONGEST else None
    if isinstance(value, str):  # JSON has integers of 64 bits as text
        value = int(value) if re.fullmatch(r"-?[0-9]{1,19}", value) else None
    if not isinstance(value, (bool, int, float)):
        return None
    if field == "f":
        return float(value)
    return bool(value) if field == "b" else int(value) if math.isfinite(value) else None


def _as_value(values: list[Any]) -> Optional[Value]:
    return None if None in values or len(values) > MOST else tuple(values)


def _wire_values(cursor: Cursor, field: WireField) -> list[Union[Number, str]]:
    """Return the values of a field of AttrValue or ListValue."""
    if field.number == 2 and field.wire == 2 and field.end - field.start <= LONGEST:
        return [cursor.text(field)]
    if field.number in (3, 5) and field.wire in (0, 2) and field.end - field.start <= MOST * 10:
        return [bool(one) if field.number == 5 else to_signed(one) for one in cursor.numbers(field)]
    if field.number == 4 and field.wire in (2, 5):
        return _floats(_raw(cursor, field))
    return []


def _raw(cursor: Cursor, field: WireField) -> bytes:
    if field.wire == 5:
        return cursor.bytes(field.start, 4)
    return cursor.bytes(field.start, field.end - field.start) if field.end - field.start <= 8 * MOST else b""


def _floats(data: bytes) -> list[Union[Number, str]]:
    return [*struct.unpack(f"<{len(data) // 4}f", data[: len(data) // 4 * 4])]


def _of_tensor(tensor: Message) -> Optional[Value]:
    """Return a constant's numbers: a tuple, or a single number for a tensor without dimensions."""
    dtype = next(iter(tensor.get("dtype", ())), "")
    shapes = [one for one in tensor.get("tensor_shape", ()) if isinstance(one, dict)]
    dims = [dim for one in shapes for dim in one.get("dim", ()) if isinstance(dim, dict)]
    sizes = [next(iter(dim.get("size", ())), 0) for dim in dims]
    values: list[Any] = []
    for content in tensor.get("tensor_content", ()):
        values += _unpack(_CONTENT.get(dtype, ""), _bytes(content)) if isinstance(content, str) else []
    for field in ("int_val", "int64_val"):
        values += [_scalar("i", one) for one in tensor.get(field, ())]
    values += [_scalar("f", one) for one in tensor.get("float_val", ())]
    return _constant(sizes, values)


def _of_wired_tensor(cursor: Cursor, field: WireField) -> Optional[Value]:
    dtype, sizes, values = 0, [], []  # type: int, list[Any], list[Any]
    for one in cursor.fields(field.start, field.end):
        if one.number == 1 and not one.wire:
            dtype = one.value
        elif one.number == 2 and one.wire == 2:
            dims = [dim for dim in cursor.fields(one.start, one.end) if dim.number == 2 and dim.wire == 2]
            for dim in dims:
                found = [to_signed(size.value) for size in cursor.fields(dim.start, dim.end) if size.number == 1]
                sizes.append(found[-1] if found else 0)
        elif one.number == 4 and one.wire == 2:
            values += _unpack(_CONTENT.get(dtype, ""), _raw(cursor, one))
        elif one.number == 5 and one.wire in (2, 5):
            values += _floats(_raw(cursor, one))
        elif one.number in (7, 10) and one.wire in (0, 2) and one.end - one.start <= MOST * 10:
            values += [to_signed(number) for number in cursor.numbers(one)]
    return _constant(sizes, values)


def _constant(sizes: list[Any], values: list[Any]) -> Optional[Value]:
    """Return the values of a constant; a single value is repeated for all elements.

    Tensors of more than one dimension, such as paddings, stay flat.
    """
    if not all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MOST for size in sizes):
        return None
    count = math.prod(sizes)
    if count > MOST or None in values or (len(values) != count and len(values) != 1):
        return None
    if not sizes:
        found: Value = values[0]
        return found
    return tuple(values * count if len(values) == 1 else values)


def _unpack(letter: str, data: bytes) -> list[Any]:
    size = struct.calcsize(letter) if letter else 0
    if not size or len(data) % size or len(data) > MOST * size:
        return []
    return [*struct.unpack(f"<{len(data) // size}{letter}", data)]


def _bytes(text: str) -> bytes:
    """Return the bytes of a text read by textproto.py."""
    return _BYTE.sub(lambda found: bytes((int(found[1], 16),)), text[: 16 * MOST].encode("utf-8", "surrogatepass"))
