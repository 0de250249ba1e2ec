"""Types that numpy does not have, against decoders that are written another way."""

from __future__ import annotations

import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucmp.dump.readers import values
from npucmp.dump.readers.decode import decode
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError, UnsupportedError
from npucmp.model import Payload
from npucmp.model.dtypes import DTYPES, numpy_dtype

DECODED = sorted(name for name, row in DTYPES.items() if row.memory)
PACKED = sorted(name for name, row in DTYPES.items() if row.bits)
ALL = bytes(range(256))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("decode")


def write(folder, raw: bytes) -> str:
    path = folder / "raw"
    path.unlink(missing_ok=True)
    path.write_bytes(raw)
    return str(path)


def read(folder, dtype: str, raw: bytes, count: int, byteorder: str = "<") -> np.ndarray:
    found = list(blocks(Payload(write(folder, raw), dtype, (count,), 0, byteorder=byteorder)))
    assert all(block.dtype == numpy_dtype(dtype) for block in found)
    return np.concatenate(found)


def same(found, golden) -> bool:
    """Bit by bit, but for the sign of NaN, which a type of one NaN does not have."""
    return np.array_equal(found, golden, equal_nan=True) and np.array_equal(
        np.signbit(found)[~np.isnan(found)], np.signbit(golden)[~np.isnan(golden)]
    )


def test_which_types_are_decoded():
    assert " ".join(DECODED) == "complex32 float4_e2m1 float8_e8m0 hifloat8 int2 int4 uint1 uint2"
    assert PACKED == ["float4_e2m1", "int2", "int4", "uint1", "uint2"]


# HiFloat8: codes are put together from the parts of a value, not taken apart.


def hifloat8():
    """The value of each code."""
    positive = {"0000000": 0.0}
    for fraction in range(1, 8):
        positive[f"0000{fraction:03b}"] = 2.0 ** (fraction - 23)
    for exponent in range(-15, 16):
        digits = f"{abs(exponent):b}" if exponent else ""  # one digit of these leads and is not written
        prefix = ("0001", "001", "01", "10", "11")[len(digits)]
        written = ("1" if exponent < 0 else "0") + digits[1:] if digits else ""
        room = 7 - len(prefix) - len(written)
        for fraction in range(2**room):
            positive[f"{prefix}{written}{fraction:0{room}b}"] = math.ldexp(2**room + fraction, exponent - room)
    assert len(positive) == 128
    found = {int(f"{sign}{bits}", 2): -value if sign else value for bits, value in positive.items() for sign in (0, 1)}
    return {**found, 0x80: math.nan, 0x6F: math.inf, 0xEF: -math.inf}


HIFLOAT8 = [hifloat8()[code] for code in range(256)]


def test_hifloat8_all_codes(folder):
    assert same(read(folder, "hifloat8", ALL, 256), np.array(HIFLOAT8, np.float32))


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x00, 0.0), (0x6F, math.inf), (0xEF, -math.inf),
        (0x08, 1.0), (0x88, -1.0), (0x0C, 1.5), (0x10, 2.0), (0x18, 0.5), (0x20, 4.0), (0x28, 8.0), (0x3F, 0.234375),
        (0x6E, 2.0**15), (0x6D, 1.5 * 2.0**14), (0x7E, 2.0**-15), (0x07, 2.0**-16), (0x01, 2.0**-22),
    ],
)  # fmt: skip
def test_hifloat8_landmarks(code, value):
    assert decode("hifloat8", bytes([code]), 0, 1).tolist() == [value]


def test_hifloat8_has_one_nan_one_zero_and_no_value_twice():
    found = decode("hifloat8", ALL, 0, 256)
    assert np.flatnonzero(np.isnan(found)).tolist() == [0x80]
    assert np.flatnonzero(found == 0).tolist() == [0]
    assert len(set(found[~np.isnan(found)].tolist())) == 255


def test_hifloat8_order():
    """Codes rise with their values while the sign of the exponent, the highest of its bits, stays the same."""
    found = decode("hifloat8", ALL, 0, 128)
    for width, first in enumerate((0x08, 0x10, 0x20, 0x40, 0x60)):
        codes = found[first : 2 * first if width < 3 else first + 0x20]
        runs = codes.reshape(2 if width else 1, -1)  # exponents above and below 0
        within = runs.reshape(len(runs), 2 ** max(width - 1, 0), -1)  # runs of one exponent
        assert np.all(np.diff(within, axis=2) > 0)
        assert np.all(np.diff(within[0, :, 0]) > 0)
        assert width == 0 or np.all(np.diff(within[1, :, 0]) < 0)


# The other types.


@pytest.mark.parametrize(
    ("name", "theirs", "codes"), [("float4_e2m1", "float4_e2m1fn", 16), ("float8_e8m0", "float8_e8m0fnu", 256)]
)
def test_against_ml_dtypes(name, theirs, codes):
    if not hasattr(ml_dtypes, theirs):
        pytest.skip("an ml_dtypes without the type")
    golden = np.arange(codes, dtype=np.uint8).view(getattr(ml_dtypes, theirs)).astype(np.float32)
    raw = bytes(high << 4 | high - 1 for high in range(1, 16, 2)) if codes == 16 else ALL
    assert same(decode(name, raw, 0, codes), golden)


def test_float4_and_e8m0_by_definition(folder):
    half = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    codes = [*half, *(-value for value in half)]
    found = read(folder, "float4_e2m1", bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]), 16)
    assert found.tolist() == codes and np.signbit(found[8])
    found = read(folder, "float8_e8m0", bytes([0, 1, 126, 127, 128, 254, 255]), 7)
    assert found[:-1].tolist() == [2.0**-127, 2.0**-126, 0.5, 1, 2, 2.0**127] and math.isnan(found[-1])


@pytest.mark.parametrize("name", ["int4", "int2", "uint2", "uint1"])
def test_integers_as_text(folder, name):
    bits = DTYPES[name].bits
    golden = []
    for byte in ALL:
        text = f"{byte:08b}"
        fields = [text[at : at + bits] for at in range(0, 8, bits)]
        for field in fields if name == "uint1" else reversed(fields):
            golden.append(int(field, 2) - (2**bits if name[0] == "i" and field[0] == "1" else 0))
    assert read(folder, name, ALL, len(golden)).tolist() == golden


def test_int4_of_a_few_bytes(folder):
    assert read(folder, "int4", bytes([0x21, 0x8F, 0x07]), 5).tolist() == [1, 2, -1, -8, 7]


def test_uint1_against_unpackbits(folder):
    assert same(read(folder, "uint1", ALL, 2045), np.unpackbits(np.frombuffer(ALL, np.uint8))[:2045])


@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_complex32(folder, byteorder):
    halves = [1.5, -2.0, 65504.0, 2.0**-24, math.inf, 0.0]
    found = read(folder, "complex32", struct.pack(f"{byteorder}6e", *halves), 3, byteorder)
    assert found.tolist() == [1.5 - 2j, 65504 + 2.0**-24 * 1j, complex(math.inf, 0)]


def test_float8_of_ml_dtypes(folder):
    """NaN of e4m3fn and the sign of an infinity of e5m2, which msaccucmp reads as 480 and +Inf."""
    found = read(folder, "float8_e4m3fn", bytes([0x7F, 0xFF, 0x7E, 0xFE, 0x01]), 5).astype(np.float32)
    assert np.isnan(found).tolist() == [True, True, False, False, False]
    assert found[2:].tolist() == [448, -448, 2.0**-9]
    found = read(folder, "float8_e5m2", bytes([0x7C, 0xFC, 0x7B, 0x01, 0x7D, 0xFF]), 6).astype(np.float32)
    assert found[:4].tolist() == [math.inf, -math.inf, 57344, 2.0**-16]
    assert np.isnan(found[4:]).all()


# Blocks.


@pytest.mark.parametrize("name", DECODED)
@pytest.mark.parametrize("whole", [1 << 20, 0], ids=["one read", "a read per block"])
@settings(max_examples=25, deadline=None)
@given(
    raw=st.binary(min_size=4, max_size=40), offset=st.integers(0, 5), short=st.integers(0, 7), size=st.integers(1, 90)
)
def test_any_block_size(folder, name, whole, raw, offset, short, size):
    bits = DTYPES[name].bits or 8 * DTYPES[name].itemsize
    count = max(1, len(raw) * 8 // bits - short)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "_WHOLE", whole)
        path = write(folder, bytes(offset) + raw)
        found = list(blocks(Payload(path, name, (count,), offset), size))
    golden = decode(name, raw[: math.ceil(count * bits / 8)], 0, count)
    assert [len(block) for block in found] == [min(size, count - at) for at in range(0, count, size)]
    assert np.concatenate(found).tobytes() == golden.tobytes()


@pytest.mark.parametrize("name", PACKED)
def test_skip_within_the_first_byte(name):
    golden = decode(name, ALL, 0, 256)
    for skip in range(8 // DTYPES[name].bits):
        assert same(decode(name, ALL, skip, 200), golden[skip : skip + 200])


@pytest.mark.parametrize("name", DECODED)
def test_file_that_is_too_short(folder, name):
    needed = DTYPES[name].stored(5)
    assert len(read(folder, name, bytes(needed), 5)) == 5
    with pytest.raises(DumpError, match=f"ended early: {needed - 1} bytes, its header promises {needed}"):
        read(folder, name, bytes(needed - 1), 5)


@pytest.mark.parametrize("name", DECODED)
def test_transposed_view(folder, name):
    raw = np.random.default_rng(0).permutation(256).astype(np.uint8).tobytes()
    payload = Payload(write(folder, raw), name, (5, 4), 0, (1, 5))
    if name in PACKED:
        with pytest.raises(UnsupportedError, match=f"strided view of {name}"):
            list(blocks(payload))
        return
    golden = decode(name, raw[: DTYPES[name].stored(20)], 0, 20).reshape(4, 5).T
    assert np.concatenate(list(blocks(payload, 7))).tobytes() == golden.tobytes()


# The rows of the table.


@pytest.mark.parametrize(("name", "denormals"), [("hifloat8", 7), ("float8_e8m0", 0), ("float4_e2m1", 1)])
def test_range_in_the_table(name, denormals):
    row = DTYPES[name]
    found = decode(name, ALL, 0, 512 if row.bits else 256)
    found = np.unique(found[np.isfinite(found) & (found > 0)])
    assert (found[denormals], found[-1]) == (row.tiny, row.largest)


@pytest.mark.parametrize(
    ("name", "mantissa"),
    [("hifloat8", lambda e: 3 if abs(e) < 4 else 2 if abs(e) < 8 else 1), ("float4_e2m1", lambda e: 1)],
)
def test_round_off_in_the_table(name, mantissa):
    """Half the gap between neighbours of exponent e; for hifloat8 that of the middle range is in the table."""
    row = DTYPES[name]
    found = decode(name, ALL, 0, 512 if row.bits else 256).astype(np.float64)
    found = np.unique(found[np.isfinite(found) & (found >= row.tiny)])
    exponents = np.frexp(found)[1][:-1] - 1
    assert (np.diff(found) / 2.0**exponents).tolist() == [2.0 ** -mantissa(e) for e in exponents]
    assert row.round_off == 2.0 ** -(mantissa(4) + 1)


def test_complex32_range_is_that_of_float16():
    assert DTYPES["complex32"][3:6] == DTYPES["float16"][3:6]
