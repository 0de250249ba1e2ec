"""Raw dumps: what the protobuf runtime and plain struct write is read bit for bit; damage never becomes values."""

from __future__ import annotations

import functools
import random
import struct
import tempfile
import tracemalloc
from pathlib import Path
from typing import NamedTuple, Optional

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.formats import cann
from npucmp.dump.readers import cann_raw
from npucmp.dump.readers.decode import decode
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError
from npucmp.model.dtypes import DTYPES
from tests.dump.readers import craft_cann as craft
from tests.dump.readers.craft_cann import EXAMPLE, FLOAT16, NC1HWC0, TIME, Tensor, tensor

NAME = f"Relu.net_relu.3.5.{TIME}"
ROLES = ("input", "output", "buffer", "space")  # the order of the payloads

# number of OutputDataType: (name, bits of an element, what numpy reads it as)
TYPES = {
    1: ("float32", 32, "<f4"), 2: ("float16", 16, "<f2"), 3: ("int8", 8, "i1"), 4: ("uint8", 8, "u1"),
    5: ("int16", 16, "<i2"), 6: ("uint16", 16, "<u2"), 7: ("int32", 32, "<i4"), 8: ("int64", 64, "<i8"),
    9: ("uint32", 32, "<u4"), 10: ("uint64", 64, "<u8"), 12: ("float64", 64, "<f8"), 16: ("complex64", 64, "<c8"),
    17: ("complex128", 128, "<c16"), 18: ("int8", 8, "i1"), 19: ("int16", 16, "<i2"), 20: ("int32", 32, "<i4"),
    21: ("uint8", 8, "u1"), 22: ("uint16", 16, "<u2"), 27: ("bfloat16", 16, ml_dtypes.bfloat16),
    34: ("float8_e5m2", 8, ml_dtypes.float8_e5m2), 35: ("float8_e4m3fn", 8, ml_dtypes.float8_e4m3fn),
}  # fmt: skip
DECODED = {
    11: ("bool", 8, lambda data: data != 0),
    28: ("int4", 4, lambda data: nibbles(data)),
    29: ("uint1", 1, np.unpackbits),
    30: ("int2", 2, lambda data: (pairs(data) ^ 2).astype(np.int8) - 2),
    31: ("uint2", 2, lambda data: pairs(data)),
    32: ("complex32", 32, lambda data: data.view("<f2").astype("<f4").view("<c8")),
    33: ("hifloat8", 8, lambda data: decode("hifloat8", data.tobytes(), 0, len(data))),  # see test_decode
    36: ("float8_e8m0", 8, lambda data: decode("float8_e8m0", data.tobytes(), 0, len(data))),
    39: ("float4_e2m1", 4, lambda data: decode("float4_e2m1", data.tobytes(), 0, 2 * len(data))),
}


def nibbles(data):
    both = np.stack([data & 15, data >> 4], -1).reshape(-1)
    return (both ^ 8).astype(np.int8) - 8


def pairs(data):
    return np.stack([data >> shift & 3 for shift in (0, 2, 4, 6)], -1).reshape(-1)


def meant(code: int, data: bytes, count: int):
    """What the first `count` elements in these bytes are."""
    if code in TYPES:
        _, bits, dtype = TYPES[code]
        return np.frombuffer(data[: count * bits // 8], dtype)
    _, bits, read = DECODED[code]
    return np.asarray(read(np.frombuffer(data[: -(-count * bits // 8)], np.uint8)))[:count]


def test_the_tables_are_whole():
    assert {name for name, _, _ in (*TYPES.values(), *DECODED.values())} == set(DTYPES)


# ---- files of the protobuf runtime ----

MESSAGES = {  # the fields by number, as the public dump_data.proto has them; "later" is of no generation
    "DumpData": "1 version string, 2 dump_time uint64, 3 output OpOutput*, 4 input OpInput*, 5 buffer OpBuffer*,"
    "6 op_name string, 7 attr OpAttr*, 8 space Workspace*, 9 dfx_message string, 40 later string",
    "OpOutput": "1 data_type int32, 2 format int32, 3 shape Shape, 4 original_op OriginalOp, 5 data bytes,"
    "6 size uint64, 7 original_shape Shape, 8 sub_format int32, 9 address uint64, 10 dim_range DimRange*,"
    "11 offset uint64, 40 later Shape",
    "OpInput": "1 data_type int32, 2 format int32, 3 shape Shape, 4 data bytes, 5 size uint64,"
    "6 original_shape Shape, 7 sub_format int32, 8 address uint64, 9 offset uint64, 10 arg_index uint32,"
    "11 input_type uint32, 40 later Shape",
    "OriginalOp": "1 name string, 2 output_index uint32, 3 data_type int32, 4 format int32",
    "Shape": "1 dim uint64*",
    "DimRange": "1 dim_start uint64, 2 dim_end uint64",
    "OpBuffer": "1 buffer_type int32, 2 data bytes, 3 size uint64",
    "OpAttr": "1 name string, 2 value string",
    "Workspace": "1 type int32, 2 data bytes, 3 size uint64, 4 arg_index uint32",
}


@functools.cache
def runtime(packed: bool = True):
    """The class DumpData of the protobuf runtime; enums are int32, the same on the wire."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="d.proto", package="toolkit.dumpdata", syntax="proto3")
    for name, fields in MESSAGES.items():
        described = file.message_type.add(name=name)
        for line in fields.split(","):
            number, word, kind = line.split()
            made = described.field.add(name=word, number=int(number), label=3 if kind.endswith("*") else 1)
            kind = kind.rstrip("*")
            if kind in MESSAGES:
                made.type, made.type_name = made.TYPE_MESSAGE, f".toolkit.dumpdata.{kind}"
            else:
                made.type = getattr(made, f"TYPE_{kind.upper()}")
            if word == "dim":
                made.options.packed = packed
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("toolkit.dumpdata.DumpData")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(found)
    return message_factory.MessageFactory(pool).GetPrototype(found)


class Plan(NamedTuple):
    """One tensor to be written: number of its type, shape (None: no such message), bytes beyond what it needs,
    whether the header holds what only later generations write."""

    code: int
    shape: Optional[tuple[int, ...]]
    padding: int
    original: bool
    later: bool
    seed: int

    @property
    def bits(self) -> int:
        return {**TYPES, **DECODED}[self.code][1]

    @property
    def data(self) -> bytes:
        elements = 3 if self.shape is None else int(np.prod(self.shape))
        return np.random.default_rng(self.seed).bytes(-(-elements * self.bits // 8) + self.padding)

    @property
    def expected_shape(self) -> tuple[int, ...]:
        if self.shape is None and self.data:
            return (len(self.data) * 8 // self.bits,)
        return (int(np.prod(self.shape)),) if self.original else self.shape

    def facts(self, role: str, inline: bool) -> dict:
        found = {"data_type": self.code, "format": 2, "size": len(self.data)}
        if self.shape is not None:
            found["shape"] = {"dim": self.shape}
            if self.original:
                found["original_shape"] = {"dim": [int(np.prod(self.shape))]}
        if self.later:
            found.update(sub_format=1, address=2**63, offset=77, later={"dim": [9, 9]})
            found.update({"original_op": {"name": "", "output_index": 3}} if role == "output" else {"arg_index": 4})
        return {**found, "data": self.data} if inline else found


PLANS = st.builds(
    Plan,
    code=st.sampled_from([*TYPES, *DECODED]),
    shape=st.none() | st.lists(st.integers(0, 5), max_size=3).map(tuple),
    padding=st.sampled_from([0, 1, 31]),
    original=st.booleans(),
    later=st.booleans(),
    seed=st.integers(0, 2**32),
)
BYTES = st.binary(max_size=20)


def runtime_file(tensors, spare, op_name, packed, inline):
    """A file of the runtime: `tensors` are plans by role, `spare` contents of buffers and workspaces."""
    made = runtime(packed)(version="2.0", dump_time=TIME // 1000, op_name=op_name)
    for role, plans in tensors.items():
        for plan in plans:
            getattr(made, role).add(**plan.facts(role, inline))
    for role, contents in spare.items():
        for data in contents:
            getattr(made, role).add(size=len(data), **({"data": data} if inline else {}))
    if any(plan.later for plans in tensors.values() for plan in plans):
        made.later = made.dfx_message = "of a later generation"
        made.attr.add(name="a", value="b")
    header = made.SerializeToString()
    if inline:
        return header
    payloads = [plan.data for role in ("input", "output") for plan in tensors[role]]
    return b"".join([struct.pack("<Q", len(header)), header, *payloads, *spare["buffer"], *spare["space"]])


@given(
    st.fixed_dictionaries({"input": st.lists(PLANS, max_size=3), "output": st.lists(PLANS, max_size=3)}),
    st.fixed_dictionaries({"buffer": st.lists(BYTES, max_size=2), "space": st.lists(BYTES, max_size=2)}),
    st.booleans(),
    st.booleans(),
)
def test_what_the_runtime_writes_is_read_bit_for_bit(tensors, spare, packed, inline):
    op_name = "net/relu" if inline or packed else ""  # version 2 does without
    data = runtime_file(tensors, spare, op_name, packed, inline)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, NAME).write_bytes(data)
        (operator,) = cann.open_runs(Path(folder))[0].operators
        if not op_name and not any((*tensors.values(), *spare.values())):
            assert operator.tensors[0].problem
            return
        assert (operator.name, operator.op_type) == (op_name or "net_relu", "Relu")
        plans = [(f"{role}:{i}", plan) for role in ("input", "output") for i, plan in enumerate(tensors[role])]
        assert [one.slot for one in operator.tensors] == [slot for slot, _ in plans]
        for found, (_, plan) in zip(operator.tensors, plans):
            check(found, plan)


def check(found, plan: Plan) -> None:
    if plan.shape is None and not plan.data:
        assert "0 bytes" in found.problem
        return
    assert (found.problem, found.shape) == ("", plan.expected_shape)
    assert found.dtype == {**TYPES, **DECODED}[plan.code][0]
    count = int(np.prod(found.shape))
    expected = meant(plan.code, plan.data, count)
    pieces = list(blocks(found.payload, 5))
    assert [len(piece) for piece in pieces] == [5] * (count // 5) + [count % 5] * (count % 5 > 0)
    assert b"".join(piece.tobytes() for piece in pieces) == expected.tobytes()


# ---- files of struct ----


def raw(path: Path, data: bytes):
    path.write_bytes(data)
    with open_regular(str(path)) as file:
        return cann_raw.read_nano(file) if cann_raw.is_nano(file) else cann_raw.read_raw(file)


def test_the_example_of_the_description(tmp_path):
    (tmp_path / NAME).write_bytes(EXAMPLE)
    (operator,) = cann.open_runs(tmp_path)[0].operators
    assert (len(EXAMPLE), operator.name, operator.op_type) == (94, "net/relu", "Relu")
    x, y = operator.tensors
    assert (x.slot, x.dtype, y.slot, y.dtype) == ("input:0", "float32", "output:0", "float16")
    np.testing.assert_array_equal(craft.values(x), [[-1, 2], [-3, 4]])
    np.testing.assert_array_equal(craft.values(y), [[0, 2], [0, 4]])


X = tensor(np.arange(6, dtype=np.float32).reshape(2, 3), original=(2, 3))
Y = tensor(np.arange(4, dtype=np.float16), origin=("net/relu", 1))
KINDS = {
    "version 2": craft.v2([X], [Y, X], "net/relu"),
    "version 1": craft.v1([X], [Y, X], "net/relu"),
    "nano": craft.nano([craft.as_ge(X)], [craft.as_ge(Y), craft.as_ge(X)]),
}


@pytest.mark.parametrize("data", KINDS.values(), ids=KINDS)
def test_three_kinds_of_the_same_tensors(tmp_path, data):
    (tmp_path / NAME).write_bytes(data)
    (operator,) = cann.open_runs(tmp_path)[0].operators
    assert [one.slot for one in operator.tensors] == ["input:0", "output:0", "output:1"]
    for found, wanted in zip(operator.tensors, (X, Y, X)):
        assert craft.values(found).tobytes() == wanted.data and found.shape == wanted.shape
    assert [one.origin for one in operator.tensors] == ["", "net/relu:1", ""]


@pytest.mark.parametrize(
    "extra",
    [
        craft.field(9, "words"),
        craft.field(5, craft.field(3, 8)),
        craft.field(8, craft.field(3, 8)),
        b"\xf9\x06" + bytes(8),
    ],
    ids=["text", "buffer", "workspace", "fixed64"],
)
def test_other_fields_are_passed_over(tmp_path, extra):
    found = raw(tmp_path / "a", craft.v2([X], [Y], extra=extra, tail=bytes(8)))
    assert [(one.role, one.problem) for one in found.tensors] == [("input", ""), ("output", "")]
    assert found.tensors[1].offset + len(Y.data) == (tmp_path / "a").stat().st_size - 8


@pytest.mark.parametrize("groups, expected", [(0, 1), (1, 1), (4, 4), (2**64 - 1, 1)], ids=["0", "1", "4", "minus 1"])
def test_sub_format_is_the_group_count(tmp_path, groups, expected):
    assert raw(tmp_path / "a", craft.v2([], [X._replace(groups=groups)])).tensors[0].groups == expected


# ---- types that are no numbers, or of no table ----


@pytest.mark.parametrize(
    "code, word",
    [
        (99, "99"), (2**31, "2147483648"), (13, "string"), (14, "dual_sub_int8"), (15, "dual_sub_uint8"),
        (23, "resource"), (24, "string_ref"), (25, "dual"), (26, "variant"), (37, "float6_e3m2"),
        (38, "float6_e2m3"), (40, "float4_e1m2"), (41, "hifloat4"), (42, "42"),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_read_is_named(tmp_path, code, word):
    (tmp_path / NAME).write_bytes(craft.v2([X._replace(code=code)], [Y]))
    x, y = cann.open_runs(tmp_path)[0].operators[0].tensors
    assert word in x.problem and word in x.dtype and x.payload is None
    assert craft.values(y).tobytes() == Y.data  # what stands after it is still found


def test_bytes_of_no_type_are_bytes(tmp_path):
    (one,) = raw(tmp_path / "a", craft.v2([], [X._replace(code=0)])).tensors
    assert (one.dtype, one.shape, one.original, one.problem) == ("int8", (24,), None, "")


# ---- damage ----


def opened(path: Path, data: bytes):
    """The tensors of one damaged file, through the door; there is always exactly one operator."""
    path.write_bytes(data)
    (run,) = cann.open_runs(path)
    (operator,) = run.operators
    return operator.tensors


@pytest.mark.parametrize("kind", KINDS)
def test_every_prefix_is_unreadable_or_whole(tmp_path, kind):
    data = KINDS[kind]
    whole = {one.slot: craft.values(one).tobytes() for one in opened(tmp_path / NAME, data)}
    for size in range(len(data)):
        tensors = opened(tmp_path / NAME, data[:size])
        readable = [one for one in tensors if not one.problem]
        assert len(readable) < len(whole) or kind == "version 1"
        assert all(craft.values(one).tobytes() == whole[one.slot] for one in readable)


def test_a_version_1_file_is_whole_once_its_name_is_there(tmp_path):
    data = KINDS["version 1"]
    problems = [one.problem for size in range(len(data)) for one in opened(tmp_path / NAME, data[:size])]
    assert all(problems)


@pytest.mark.parametrize("kind", KINDS)
def test_readers_place_tensors_inside_the_file(tmp_path, kind):
    for size in range(len(KINDS[kind])):
        try:
            tensors = raw(tmp_path / "a", KINDS[kind][:size]).tensors
        except DumpError:
            continue
        for one in tensors:
            assert one.problem or one.offset + DTYPES[one.dtype].stored(int(np.prod(one.shape))) <= size


@pytest.mark.parametrize("length", [1546, 1554])
def test_a_length_that_looks_like_a_field_is_no_version_1(tmp_path, length):
    """Behind such a length the fields go on, up to the attributes that fill the header."""
    one = X._replace(code=0)
    spare = length - len(craft.header([], [one], "op", [("a", "x" * 1000)]))
    data = craft.v2([], [one], "op", [("a", "x" * (1000 + spare))])
    assert int.from_bytes(data[:8], "little") == length
    assert all(one.problem for size in range(8, 100) for one in opened(tmp_path / NAME, data[:size]))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes_are_told_or_read(tmp_path, kind):
    dice = random.Random(kind)
    tracemalloc.start()
    for _ in range(200):
        data = bytearray(KINDS[kind])
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
        for one in opened(tmp_path / NAME, bytes(data)):
            assert one.problem or one.payload.device or sum(map(len, blocks(one.payload))) == np.prod(one.shape)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


BIG = 2**63
HOSTILE = {
    "header length": struct.pack("<Q", BIG) + bytes(100),
    "header length, all ones": b"\xff" * 100,
    "a dimension": craft.v2([], [X._replace(shape=(BIG, 2))]),
    "dimensions whose product wraps": craft.v2([], [X._replace(shape=(2**32, 2**32))]),
    "many dimensions": craft.v2([], [X._replace(shape=(1,) * 5000)]),
    "very many dimensions": craft.v2([], [X._replace(shape=(1,) * 120_000)]),
    "declared size": craft.v2([X._replace(size=2**64 - 1, shape=(2**40,))], [Y]),
    "original shape": craft.v2([], [X._replace(original=(BIG, BIG))]),
    "groups": craft.v2([], [X._replace(layout=4, groups=2**31 - 1, shape=(1, 1, 16, 16), original=(6,))]),
    "layout and dimensions": craft.v2([], [X._replace(layout=NC1HWC0, shape=(2**40,) * 5, original=(2**40,) * 4)]),
    "nano count": craft.nano([craft.as_ge(X)], [], count=2**32 - 1),
    "nano dimension": craft.nano([], [craft.as_ge(X)._replace(shape=(BIG,))]),
    "nano size": craft.nano([], [craft.as_ge(X)._replace(size=2**64 - 1, shape=(2**43,))]),
    "nano header": struct.pack("<Q", 3 << 20) + b"\x5a" * 4 + bytes(3 << 20),
    "varint without an end": craft.v2([], [X], extra=b"\x80" * 40),
    "a group": craft.v2([], [X], extra=b"\x0b\x0c"),
    "a text as a number": craft.v2([], [X], extra=b"\x30\x01"),
    "a message as a number": craft.v2([], [X], extra=b"\x18\x01"),
    "a shape as a number": craft.v2([], [X], extra=craft.field(3, b"\x18\x01")),
    "nothing": b"",
    "zeros": bytes(4096),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_huge_promises_are_told_and_cost_nothing(tmp_path, data):
    tracemalloc.start()
    tensors = opened(tmp_path / NAME, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tensors[0].problem
    assert peak < 8 << 20


@pytest.mark.parametrize(
    "one, words",
    [
        (X._replace(shape=(2, 4)), "needs 32 bytes, its header promises 24"),
        (X._replace(size=0), "were not written: 0 bytes"),
        (X._replace(data=X.data[:-1], size=24), "ended early"),
        (X._replace(size=32), "ended early"),
        (X._replace(size=BIG), "ended early"),
        (X._replace(shape=(BIG,)), "more than the limit tensor_bytes"),
        (Tensor(b"", None), "were not written: 0 bytes"),
    ],
)
def test_damage_in_words(tmp_path, one, words):
    assert words in opened(tmp_path / NAME, craft.v2([], [one], "op"))[0].problem


def test_half_precision_needs_half_of_the_bytes(tmp_path):
    (one,) = opened(tmp_path / NAME, craft.v2([], [X._replace(code=FLOAT16)]))  # padding, twice as much as needed
    assert (one.problem, one.shape, one.dtype) == ("", (2, 3), "float16")
