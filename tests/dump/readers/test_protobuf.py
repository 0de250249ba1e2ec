"""The wire format: what the protobuf runtime writes is walked to the same fields; damage is a DumpError."""

from __future__ import annotations

import functools
import struct
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npucmp import Limits
from npucmp.dump.readers.protobuf import Cursor, WireField, to_signed
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.errors import DumpError

LAST = 2**29 - 1  # the largest field number
WINDOW = 4096

# name: (number, type, repeated, packed)
FIELDS = {
    "small": (1, "INT32", False, False),
    "many": (2, "UINT64", True, False),
    "half": (3, "FIXED32", False, False),
    "halves": (4, "FLOAT", True, False),
    "whole": (5, "DOUBLE", False, False),
    "wholes": (6, "FIXED64", True, True),
    "packed": (7, "INT64", True, True),
    "data": (8, "BYTES", True, False),
    "text": (16, "STRING", False, False),
    "inner": (2000, "MESSAGE", True, False),
    "flag": (LAST, "BOOL", False, False),
}
VARINTS, RAW = ("INT32", "UINT64", "INT64", "BOOL"), {"FIXED32": "<I", "FLOAT": "<f", "FIXED64": "<Q", "DOUBLE": "<d"}


@functools.cache
def message_class():
    """The class that the protobuf runtime makes of FIELDS."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="M")
    for name, (number, kind, repeated, packed) in FIELDS.items():
        made = message.field.add(name=name, number=number, label=3 if repeated else 1)
        made.type = getattr(made, f"TYPE_{kind}")
        if kind == "MESSAGE":
            made.type_name = ".t.M"
        elif repeated and kind != "BYTES":
            made.options.packed = packed
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    described = pool.FindMessageTypeByName("t.M")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(described)
    return message_factory.MessageFactory(pool).GetPrototype(described)


PLAIN = st.fixed_dictionaries(
    {},
    optional={
        "small": st.integers(-(2**31), 2**31 - 1),
        "many": st.lists(st.integers(0, 2**64 - 1), max_size=4),
        "half": st.integers(0, 2**32 - 1),
        "halves": st.lists(st.floats(width=32), max_size=3),
        "whole": st.floats(),
        "wholes": st.lists(st.integers(0, 2**64 - 1), max_size=3),
        "packed": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
        "data": st.lists(st.binary(max_size=20) | st.integers(0, 3 * WINDOW).map(bytes), max_size=2),
        "text": st.text(max_size=10),
        "flag": st.booleans(),
    },
)
TREES = st.recursive(
    PLAIN, lambda inner: st.builds(lambda plain, items: {**plain, "inner": items}, PLAIN, st.lists(inner, max_size=2))
)


def written(tree: dict) -> bytes:
    return message_class()(**tree).SerializeToString()


def single(name: str, value) -> list[tuple[int, int, object]]:
    """One value as the wire carries it: (number, wire type, number or bytes or fields)."""
    number, kind, _, _ = FIELDS[name]
    if kind in VARINTS:
        return [(number, 0, value % 2**64)]
    if kind in RAW:
        raw = struct.pack(RAW[kind], value)
        return [(number, 5 if len(raw) == 4 else 1, int.from_bytes(raw, "little"))]
    if kind == "MESSAGE":
        return [(number, 2, expected(value))]
    return [(number, 2, value.encode() if kind == "STRING" else value)]


def expected(tree: dict) -> list:
    """The fields of a message; of single ones, proto3 does not write zero."""
    found = []
    for name, value in tree.items():
        number, _, repeated, packed = FIELDS[name]
        if packed and value:
            found.append((number, 2, [one % 2**64 for one in value]))
        elif repeated and not packed:
            found += [one for item in value for one in single(name, item)]
        elif not repeated and (value or str(value) == "-0.0"):
            found += single(name, value)
    return sorted(found, key=lambda one: one[0])


def walked(cursor: Cursor, data: bytes, start: int, end: int) -> list:
    """The same from a file; positions are checked against its bytes on the way."""
    found = []
    for field in cursor.fields(start, end):
        kind = next(kind for number, kind, _, _ in FIELDS.values() if number == field.number)
        content: object = field.value
        if field.wire == 2:
            content = content_of(cursor, data, field, kind)
        elif field.wire:
            assert int.from_bytes(data[field.start : field.end], "little") == field.value
        found.append((field.number, field.wire, content))
    return sorted(found, key=lambda one: one[0])


def content_of(cursor: Cursor, data: bytes, field: WireField, kind: str) -> object:
    if kind == "MESSAGE":
        return walked(cursor, data, field.start, field.end)
    raw = cursor.bytes(field.start, field.end - field.start)
    assert raw == data[field.start : field.end]
    if kind == "STRING":
        assert cursor.text(field) == raw.decode()
    if kind in VARINTS:
        return cursor.numbers(field)
    return [one for (one,) in struct.iter_unpack(RAW[kind], raw)] if kind in RAW else raw


@contextmanager
def cursor_over(path: Path, data: bytes):
    path.write_bytes(data)
    with open_regular(str(path)) as file:
        yield Cursor(file)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("protobuf") / "message"


def fields(place: Path, data: bytes, start: int = 0) -> list[WireField]:
    with cursor_over(place, data) as cursor:
        return list(cursor.fields(start, len(data)))


# --- what the runtime writes


@given(TREES)
@example({"data": [bytes(WINDOW - 3), bytes(WINDOW), b"x"], "text": "ü" * 5000, "inner": [{}, {"data": [bytes(9999)]}]})
@example({"whole": -0.0, "small": -1})
def test_the_same_fields(place, tree):
    data = written(tree)
    with cursor_over(place, data) as cursor:
        assert walked(cursor, data, 0, len(data)) == expected(tree)


@given(st.lists(st.tuples(st.integers(0, 20000), st.integers(0, 2 * WINDOW)), max_size=30))
def test_the_window_shows_the_file(place, pieces):
    """In any order of reading, forwards and backwards."""
    data = bytes(i * 7 % 251 for i in range(20000 + 2 * WINDOW))
    with cursor_over(place, data) as cursor:
        assert all(cursor.bytes(at, length) == data[at : at + length] for at, length in pieces)


def test_a_payload_is_passed_over(place, monkeypatch):
    data = written({"data": [bytes(50 * WINDOW)] * 3, "flag": True})
    asked = []
    read = RegularFile.read
    monkeypatch.setattr(RegularFile, "read", lambda file, at, size: (asked.append(size), read(file, at, size))[1])
    assert len(fields(place, data)) == 4
    assert sum(asked) <= 4 * WINDOW


@given(PLAIN, PLAIN)
@example({"packed": [300, -1], "whole": 1.0, "many": [2**64 - 1]}, {"half": 7, "flag": True, "data": [b"abc"]})
def test_every_prefix(place, tree, inner):
    data = written({**tree, "data": [one[:30] for one in tree.get("data", ())], "inner": [inner]})[:400]
    found = prefix(place, data)
    for size in range(len(data)):
        part = prefix(place, data[:size])
        assert part == found[: len(part)]


def prefix(place: Path, data: bytes) -> list[WireField]:
    """The fields before the end or the damage."""
    found = []
    with cursor_over(place, data) as cursor:
        try:
            for field in cursor.fields(0, len(data)):
                found.append(field)
        except DumpError as error:
            assert "ended early" in error.because or "does not end" in error.because
    return found


@given(st.binary(max_size=80))
def test_random_bytes(place, data):
    with cursor_over(place, data) as cursor:
        try:
            for field in cursor.fields(0, len(data)):
                assert 0 <= field.start <= field.end <= len(data)
                cursor.text(field)
                cursor.numbers(field)
        except DumpError as error:
            assert error.path == str(place)


# --- by hand


@pytest.mark.parametrize(
    "data, value",
    [
        (b"\x00", 0),
        (b"\x7f", 127),
        (b"\x80\x01", 128),
        (b"\x80\x00", 0),
        (b"\xff" * 9 + b"\x01", 2**64 - 1),
        (b"\x80" * 9 + b"\x00", 0),
        (b"\xff" * 9 + b"\x7f", 2**64 - 1),
    ],
)
def test_varints(place, data, value):
    with cursor_over(place, data + b"\x55") as cursor:
        assert cursor.varint(0, len(data)) == (value, len(data))
        assert cursor.varint(0, len(data) + 1) == (value, len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 5, b"\x80" * 10, b"\x80" * 10 + b"\x00"])
def test_varints_without_end(place, data):
    with cursor_over(place, data) as cursor, pytest.raises(DumpError, match="does not end"):
        cursor.varint(0, len(data))


def test_a_varint_ends_in_its_message(place):
    """The next byte of the file belongs to another field."""
    with cursor_over(place, b"\x08\x80\x01") as cursor, pytest.raises(DumpError, match="does not end"):
        list(cursor.fields(0, 2))


@pytest.mark.parametrize(
    "data, because",
    [
        (b"\x00\x01", "not a protobuf field: tag 0"),
        (b"\x05\x00\x00\x00\x00", "not a protobuf field: tag 5"),  # field 0, four bytes
        (b"\x0b\x0c", "tag 11"),  # a group starts
        (b"\x0c", "tag 12"),  # a group ends
        (b"\x0e\x00", "tag 14"),
        (b"\x0f\x00", "tag 15"),
        (b"\x80\x80\x80\x80\x10\x00", "tag 4294967296"),  # field 2^29
        (b"\x0a\x05abcd", "needs 5 bytes of 4 left"),
        (b"\x0a" + b"\xff" * 9 + b"\x01", "needs 18446744073709551615 bytes of 0 left"),
        (b"\x09" + bytes(7), "needs 8 bytes of 7 left"),
        (b"\x0d" + bytes(3), "needs 4 bytes of 3 left"),
        (b"\x0a", "does not end"),
        (b"\x08" + b"\x80" * 11, "does not end"),
    ],
)
def test_damage(place, data, because):
    with pytest.raises(DumpError, match=because) as caught:
        fields(place, b"\x08\x01" + data, 2)
    assert caught.value.offset is not None and caught.value.offset >= 2


def test_fields_before_the_damage_are_given(place):
    with cursor_over(place, b"\x08\x07\x00") as cursor:
        walk = cursor.fields(0, 3)
        assert next(walk) == WireField(1, 0, 7, 1, 2)
        with pytest.raises(DumpError):
            next(walk)


def test_a_length_may_not_leave_its_message(place):
    """The file is long enough, the message around it is not."""
    with cursor_over(place, b"\x0a\x03\x12\x05\x00" + bytes(50)) as cursor:
        outer = next(cursor.fields(0, cursor.file.size))
        with pytest.raises(DumpError, match="needs 5 bytes of 1 left"):
            list(cursor.fields(outer.start, outer.end))


def test_the_number_of_fields_is_bounded(place):
    assert len(fields(place, b"\x08\x01" * Limits().protobuf_fields)) == Limits().protobuf_fields
    with pytest.raises(DumpError, match="more than the limit protobuf_fields"):
        fields(place, b"\x08\x01" * (Limits().protobuf_fields + 1))


def test_the_numbers_of_a_field_are_bounded(place):
    count = Limits().protobuf_fields + 1
    with cursor_over(place, bytes(count)) as cursor:
        assert cursor.numbers(WireField(1, 2, 0, 0, count - 1)) == [0] * (count - 1)
        with pytest.raises(DumpError, match="more than the limit protobuf_fields"):
            cursor.numbers(WireField(1, 2, 0, 0, count))


def test_a_text_is_bounded(place):
    with cursor_over(place, b"") as cursor, pytest.raises(DumpError, match="a text of"):
        cursor.text(WireField(1, 2, 0, 0, Limits().text_bytes + 1))


def test_a_text_that_is_no_utf8(place):
    with cursor_over(place, b"\x0a\x03a\xffb") as cursor:
        assert cursor.text(next(cursor.fields(0, 5))) == "a\\xffb"


@given(st.integers(-(2**63), 2**63 - 1))
@example(-1)
@example(-(2**63))
@example(2**63 - 1)
def test_signed(value):
    assert to_signed(value % 2**64) == value
