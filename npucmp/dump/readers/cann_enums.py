"""Tables of the numbers in raw CANN dumps: element types and layouts.

There are three numberings: OutputDataType of the dump's protobuf (the same as ge.proto.DataType), ge::DataType of
nano dumps, and OutputFormat. A number that is in no table is shown, never guessed.
Source: dump_data.proto, ge_ir.proto and types.h of the public CANN repositories.
"""

from __future__ import annotations

from typing import NamedTuple

OUTPUT_DATA_TYPE = {
    0: "undefined", 1: "float32", 2: "float16", 3: "int8", 4: "uint8", 5: "int16", 6: "uint16", 7: "int32",
    8: "int64", 9: "uint32", 10: "uint64", 11: "bool", 12: "float64", 13: "string", 14: "dual_sub_int8",
    15: "dual_sub_uint8", 16: "complex64", 17: "complex128", 18: "int8", 19: "int16", 20: "int32", 21: "uint8",
    22: "uint16", 23: "resource", 24: "string_ref", 25: "dual", 26: "variant", 27: "bfloat16", 28: "int4", 29: "uint1",
    30: "int2", 31: "uint2", 32: "complex32", 33: "hifloat8", 34: "float8_e5m2", 35: "float8_e4m3fn",
    36: "float8_e8m0", 37: "float6_e3m2", 38: "float6_e2m3", 39: "float4_e2m1", 40: "float4_e1m2", 41: "hifloat4",
}  # fmt: skip

GE_DATA_TYPE = {
    0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 6: "int16", 7: "uint16", 8: "uint32", 9: "int64",
    10: "uint64", 11: "float64", 12: "bool", 13: "string", 14: "dual_sub_int8", 15: "dual_sub_uint8",
    16: "complex64", 17: "complex128", 18: "int8", 19: "int16", 20: "int32", 21: "uint8", 22: "uint16",
    23: "resource", 24: "string_ref", 25: "dual", 26: "variant", 27: "bfloat16", 28: "undefined", 29: "int4",
    30: "uint1", 31: "int2", 32: "uint2", 33: "complex32", 34: "hifloat8", 35: "float8_e5m2", 36: "float8_e4m3fn",
    37: "float8_e8m0", 38: "float6_e3m2", 39: "float6_e2m3", 40: "float4_e2m1", 41: "float4_e1m2",
}  # fmt: skip

DT_NAMES = {  # DT_FLOAT16 and the like, in statistics and graphs
    "float": "float32", "double": "float64", "bf16": "bfloat16", "qint8": "int8", "qint16": "int16",
    "qint32": "int32", "quint8": "uint8", "quint16": "uint16",
}  # fmt: skip

OUTPUT_FORMAT = {
    0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", 5: "NC1C0HWPAD", 6: "NHWC1C0", 7: "FSR_NCHW",
    8: "FRACTAL_DECONV", 9: "C1HWNC0", 10: "FRACTAL_DECONV_TRANSPOSE", 11: "FRACTAL_DECONV_SP_STRIDE_TRANS",
    12: "NC1HWC0_C04", 13: "FRACTAL_Z_C04", 14: "CHWN", 15: "FRACTAL_DECONV_SP_STRIDE8_TRANS", 16: "HWCN",
    17: "NC1KHKWHWC0", 18: "BN_WEIGHT", 19: "FILTER_HWCK", 20: "HASHTABLE_LOOKUP_LOOKUPS",
    21: "HASHTABLE_LOOKUP_KEYS", 22: "HASHTABLE_LOOKUP_VALUE", 23: "HASHTABLE_LOOKUP_OUTPUT",
    24: "HASHTABLE_LOOKUP_HITS", 25: "C1HWNCoC0", 26: "MD", 27: "NDHWC", 28: "FRACTAL_ZZ", 29: "FRACTAL_NZ",
    30: "NCDHW", 31: "DHWCN", 32: "NDC1HWC0", 33: "FRACTAL_Z_3D", 34: "CN", 35: "NC", 36: "DHWNC",
    37: "FRACTAL_Z_3D_TRANSPOSE", 38: "FRACTAL_ZN_LSTM", 39: "FRACTAL_Z_G", 40: "RESERVED", 41: "ALL", 42: "NULL",
    43: "ND_RNN_BIAS", 44: "FRACTAL_ZN_RNN", 45: "YUV", 46: "YUV_A", 47: "NCL", 48: "FRACTAL_Z_WINO", 49: "C1HWC0",
}  # fmt: skip
NOT_NUMBERS = {"string", "string_ref", "resource", "variant", "dual", "dual_sub_int8", "dual_sub_uint8"}


class RawTensor(NamedTuple):
    """One tensor as the header of a raw dump describes it.

    role "input" or "output"; dtype canonical if npucmp can read it, else the word of the header; shape the stored
    shape; original the logical shape, None if unknown; offset and size in bytes of the payload; origin the tensor of
    the unfused network that an output is, "{operator}:{index}", "" if unknown.
    """

    role: str
    dtype: str
    layout: str
    shape: tuple[int, ...]
    original: tuple[int, ...] | None
    groups: int
    offset: int
    size: int
    problem: str = ""
    origin: str = ""


class RawDump(NamedTuple):
    """The header of one raw dump file. op_name is unescaped, "" if absent; attributes are (name, text)."""

    op_name: str
    tensors: tuple[RawTensor, ...]
    attributes: tuple[tuple[str, str], ...] = ()


def from_name(word: str) -> str:
    """Return the canonical name of a type such as "DT_FLOAT16"; unknown names are returned in lower case."""
    name = word.strip().lower()
    name = name[3:] if name.startswith("dt_") else name
    return DT_NAMES.get(name, name)
