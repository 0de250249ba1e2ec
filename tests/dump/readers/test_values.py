"""Blocks of values against element-by-element arithmetic on the raw bytes."""

from __future__ import annotations

import itertools
import math
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers import header, values
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError, UnsupportedError
from npucmp.model import Payload
from npucmp.model.dtypes import DTYPES, numpy_dtype

WIDTH = {"bool": 1, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8, "complex128": 16}
PLAIN = sorted(name for name, row in DTYPES.items() if not row.memory)
TINY = {"_WHOLE": 40, "_SPAN": 100, "_TILE": 90, "_WINDOW": 60, "_GAP": 0, "_PIECE": 50}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("values")


def width(dtype: str) -> int:
    return WIDTH.get(dtype) or int("".join(filter(str.isdigit, dtype))) // 8


def expected(payload: Payload, raw: bytes) -> list:
    """The bytes of each element in logical order, little endian; every index by itself."""
    size = width(payload.dtype)
    strides = payload.strides or [math.prod(payload.shape[i + 1 :]) for i in range(len(payload.shape))]
    found = []
    for index in itertools.product(*map(range, payload.shape)):
        place = payload.offset + size * sum(i * stride for i, stride in zip(index, strides))
        element = raw[place : place + size]
        if payload.byteorder == ">":
            half = size // 2
            parts = (element[:half], element[half:]) if "complex" in payload.dtype else (element,)
            element = b"".join(part[::-1] for part in parts)
        found.append(element)
    return found


@st.composite
def payloads(draw):
    """A payload and the bytes of a file that holds it, with something before and after it."""
    dtype = draw(st.sampled_from(PLAIN))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    strides = tuple(draw(st.lists(st.integers(0, 12), min_size=len(shape), max_size=len(shape))))
    if draw(st.booleans()) or not shape:
        strides = ()
    reach = 1 + sum((d - 1) * s for d, s in zip(shape, strides)) if strides else math.prod(shape)
    offset = draw(st.integers(0, 9))
    size = offset + max(reach, 0) * width(dtype) + draw(st.integers(0, 3))
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype == "bool":
        raw = bytes(byte % 2 for byte in raw)
    return Payload("", dtype, shape, offset, strides, draw(st.sampled_from("<>"))), raw


@pytest.mark.few(1)
@pytest.mark.parametrize("sizes", [{}, TINY, {**TINY, "_GAP": 1000}], ids=["default", "tiny", "large gap"])
@given(case=payloads(), elements=st.integers(1, 40))
def test_equal_to_element_by_element(folder, sizes, case, elements):
    payload, raw = case
    path = folder / "raw"
    path.unlink(missing_ok=True)
    path.write_bytes(raw)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(values, name, size)
        found = list(blocks(payload._replace(path=str(path)), elements))
    count = math.prod(payload.shape)
    assert [len(block) for block in found] == [elements] * (count // elements) + [count % elements] * (
        count % elements > 0
    )
    assert all(block.ndim == 1 and block.dtype == numpy_dtype(payload.dtype) for block in found)
    assert b"".join(block.tobytes() for block in found) == b"".join(expected(payload, raw))


def test_meaning_of_each_dtype(folder):
    """1.5 (or 1, or True) in the bytes of each type, from the formats' definitions."""
    ones = {
        "float64": "000000000000f83f", "float32": "0000c03f", "float16": "003e", "bfloat16": "c03f",
        "float8_e4m3fn": "3c", "float8_e5m2": "3e",
        "complex64": "0000c03f" "00000000", "complex128": "000000000000f83f" "0000000000000000",
    }  # fmt: skip
    for name in PLAIN:
        raw = bytes.fromhex(ones[name]) if name in ones else (1).to_bytes(width(name), "little")
        (folder / "one").write_bytes(raw)
        (block,) = blocks(Payload(str(folder / "one"), name, (), 0))
        assert complex(block[0]) == (1.5 if name in ones else 1), name


def test_bool_of_another_byte_is_true(folder):
    (folder / "bool").write_bytes(bytes([0, 1, 2, 255]))
    (block,) = blocks(Payload(str(folder / "bool"), "bool", (4,), 0))
    assert block.tobytes() == bytes([0, 1, 1, 1])


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0)])
def test_an_empty_tensor_has_no_blocks(folder, shape):
    assert list(blocks(Payload(str(folder / "never opened"), "float32", shape, 0))) == []


@pytest.mark.parametrize("strides", [(), (1, 3)])
def test_truncated_after_the_header_was_read(folder, strides):
    payload = Payload(str(folder / "short"), "int16", (3, 4), 6, strides)
    (folder / "short").write_bytes(bytes(6 + 24 - 1))
    with pytest.raises(DumpError, match="ended early: 29 bytes, its header promises 30"):
        list(blocks(payload))
    (folder / "short").write_bytes(bytes(6 + 24))
    assert sum(map(len, blocks(payload))) == 12


def test_file_that_shrinks_while_it_is_read(folder):
    path = folder / "shrinking"
    path.write_bytes(bytes(4 << 20))
    found = blocks(Payload(str(path), "float32", (1 << 20,), 0), 1 << 16)
    assert len(next(found)) == 1 << 16
    with path.open("r+b") as file:
        file.truncate(1 << 19)
    with pytest.raises(DumpError, match="became shorter"):
        list(found)


def test_unknown_type_and_missing_file(folder):
    with pytest.raises(UnsupportedError, match="float4"):
        list(blocks(Payload(str(folder / "x"), "float4", (1,), 0)))
    with pytest.raises(DumpError, match="no such file"):
        list(blocks(Payload(str(folder / "none"), "float32", (1,), 0)))


def peak(payload: Payload, elements: int) -> int:
    tracemalloc.start()
    try:
        assert sum(map(len, blocks(payload, elements))) == math.prod(payload.shape)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def sparse(folder, size: int) -> str:
    path = folder / "sparse"
    with path.open("wb") as file:
        file.truncate(size)
    return str(path)


def test_memory_of_a_large_tensor(folder):
    path = sparse(folder, 1 << 28)
    assert peak(Payload(path, "float32", (1 << 26,), 0), 32768) < 1 << 20


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2048, 4096), (1, 2048)),
        ((512, 64, 256), (64, 1, 32768)),
        ((1 << 22,), (2,)),
        ((2, 1 << 22), (1, 2)),
        ((64, 1 << 17), (0, 64)),
    ],
)
def test_memory_of_a_large_view(folder, monkeypatch, shape, strides):
    for name in ("_SPAN", "_TILE", "_WINDOW"):
        monkeypatch.setattr(values, name, 1 << 20)
    payload = Payload(sparse(folder, 1 << 25), "float32", shape, 0, strides)
    assert peak(payload, 32768) < 5 << 20


def test_expanded_scalar_comes_block_by_block(folder):
    (folder / "one").write_bytes(struct.pack("<f", 2.5))
    found = blocks(Payload(str(folder / "one"), "float32", (1 << 20, 1 << 20), 0, (0, 0)), 1000)
    assert [block.tolist() for block in itertools.islice(found, 3)] == [[2.5] * 1000] * 3


def test_transposed_matrix_against_numpy(folder):
    matrix = np.arange(900 * 1100, dtype=np.int32).reshape(900, 1100)
    matrix.tofile(folder / "matrix")
    payload = Payload(str(folder / "matrix"), "int32", (1100, 900), 0, (1, 1100))
    assert np.array_equal(np.concatenate(list(blocks(payload, 1001))), matrix.T.reshape(-1))


def test_rank_that_numpy_cannot_hold(folder):
    (folder / "rank").write_bytes(bytes(64))
    alternating = Payload(str(folder / "rank"), "int8", (2,) * 40, 0, (0, 1) * 20)
    with pytest.raises(DumpError, match="more than 32 dimensions"):
        next(blocks(alternating))
    most = Payload(str(folder / "rank"), "int8", (2,) * 32, 0, (0, 1) * 16)
    assert len(next(blocks(most, 100))) == 100
    flat = Payload(str(folder / "rank"), "int8", (1,) * 60 + (2, 2), 0, (7,) * 60 + (1, 2))
    assert [len(block) for block in blocks(flat)] == [4]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i2"])
def test_picked_rows_are_those_of_the_array(tmp_path, dtype, order):
    x = np.asarray(np.arange(120).reshape(4, 5, 6), dtype, order)
    np.save(tmp_path / "x.npy", x)
    found = values.picked_rows(header("npy", str(tmp_path / "x.npy")), 6, [0, 7, 19], ANYWHERE)
    assert np.array_equal(found, x.reshape(20, 6)[[0, 7, 19]])
