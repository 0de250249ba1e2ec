"""NPY files: what numpy wrote is read back, and every lie of a header is a DumpError."""

from __future__ import annotations

import math
import os
import struct
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump import readers
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError
from npucmp.model import Payload

NAMES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
NAMES += ["bool", "float16", "float32", "float64", "complex64", "complex128"]
SHAPES = [(), (1,), (7,), (0,), (2, 3), (3, 0, 2), (1, 5, 1), (4, 3, 2), (2, 1, 3, 2)]

header = partial(readers.header, "npy")


def npy(text: str, data: bytes = b"", version: tuple = (1, 0), length: int = -1) -> bytes:
    """A file with this header text, unpadded; `length` is what it says the text's length is."""
    raw = text.encode("utf-8" if version == (3, 0) else "latin-1")
    size = struct.pack("<H" if version == (1, 0) else "<I", len(raw) if length < 0 else length)
    return b"\x93NUMPY" + bytes(version) + size + raw + data


def says(descr: str = "'<f4'", order: str = "False", shape: str = "(2, 3)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("npy")


def written(folder, data: bytes) -> str:
    path = folder / "a.npy"
    path.unlink(missing_ok=True)  # a file cut to nothing and written again is flushed to the disk: slow
    path.write_bytes(data)
    return str(path)


def read(payload: Payload) -> np.ndarray:
    """All values in the logical shape."""
    parts = [np.empty(0, payload.dtype), *blocks(payload, 4)]
    return np.concatenate(parts).reshape(payload.shape)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("name", NAMES)
def test_what_numpy_saved(folder, name, byteorder, order):
    for shape in SHAPES:
        raw = np.arange(math.prod(shape) * np.dtype(name).itemsize, dtype=np.uint8) % 2
        expected = np.array(raw.view(np.dtype(name).newbyteorder(byteorder)).reshape(shape), order=order)
        path = str(folder / "a.npy")
        np.save(path, expected)
        payload = header(path)
        assert (payload.dtype, payload.shape) == (name, shape)
        found = read(payload)
        assert found.dtype.isnative and found.tobytes() == expected.astype(name).tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions(folder, version):
    path = folder / "a.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.arange(6.0), version=version)
    assert read(header(str(path))).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_where_the_payload_lies(folder):
    data = struct.pack(">6h", *range(6))
    path = written(folder, npy(says("'>i2'", "True"), data))
    assert header(path) == Payload(path, "int16", (2, 3), 10 + len(says("'>i2'", "True")), (1, 2), ">")
    assert read(header(path)).tolist() == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize("shape", ["(6,)", "(1, 6)", "(6, 1, 1)", "(0, 6)", "()"])
def test_fortran_order_without_effect_has_no_strides(folder, shape):
    data = bytes(4 * math.prod(eval(shape)))
    assert header(written(folder, npy(says(order="True", shape=shape), data))).strides == ()


def test_a_header_of_other_writers(folder):
    """Keys in another order, double quotes, no blanks, no padding; and one longer than the first read."""
    text = '{"shape":(2,3),"fortran_order":False,"descr":"<f4"}'
    assert header(written(folder, npy(text, bytes(24)))).shape == (2, 3)
    longest = says().ljust(65_535) + "\n"
    assert header(written(folder, npy(longest, bytes(24), (2, 0)))).shape == (2, 3)


UNSUPPORTED = {
    "'|O'": "Python objects",
    "'O'": "Python objects",
    "[('a', '<f4')]": "structured",
    "[('a', '|O')]": "structured",
    "('<f4', (2,))": "structured",
    "{'names': ['a']}": "structured",
    "'<V2'": "bytes without a type; save bfloat16",
    "'|V1'": "bytes without a type",
    "'|V0'": "bytes without a type",
    "'<U0'": "elements of type '<U0'",
    "'|S4'": "elements of type",
    "'<M8[ns]'": "elements of type",
    "'<f16'": "extended precision",
    "'<c32'": "extended precision",
    "'<f1'": "elements of type '<f1'",
    "'<f04'": "elements of type",
    "'<f0'": "elements of type",
    "'<i3'": "elements of type",
    "'|b2'": "elements of type",
    "'|f4'": "no byte order",
    "'=f4'": "elements of type",
    "'f4'": "elements of type",
    "'<c4'": "elements of type",
    "'bfloat16'": "elements of type",
    "'<f٤'": "elements of type '<f.u0664'",
    "'\x1b[J'": r"elements of type '.x1b\[J'",
    "'\\d'": "not a plain header",
    "4": "structured",
}


@pytest.mark.parametrize("descr", UNSUPPORTED)
def test_unsupported_element_type(folder, descr):
    with pytest.raises(DumpError, match=UNSUPPORTED[descr]):
        header(written(folder, npy(says(descr), bytes(24), (3, 0))))


def test_what_numpy_makes_of_other_types(folder):
    """The files that numpy itself writes for types npucmp refuses."""
    import ml_dtypes

    for array, why in (
        (np.zeros(2, ml_dtypes.bfloat16), "bytes without a type"),
        (np.zeros(2, ml_dtypes.float8_e4m3fn), "bytes without a type"),
        (np.zeros(2, np.longdouble), "extended precision"),
        (np.array([{}, []], dtype=object), "Python objects"),
        (np.zeros(2, [("a", "<f4")]), "structured"),
        (np.array(["a"]), "elements of type '<U1'"),
    ):
        np.save(folder / "a.npy", array)
        with pytest.raises(DumpError, match=why):
            header(str(folder / "a.npy"))


FLAT = says(shape="(1000000000000,)")
LIES = {
    "short": (npy(says(), bytes(23)), "holds 23 bytes of data, its header promises 24"),
    "trailing": (npy(says(), bytes(25)), "holds 25 bytes of data, its header promises 24"),
    "no data": (npy(says()), "holds 0 bytes of data, its header promises 24"),
    "empty with data": (npy(says(shape="(0,)"), b"x"), "holds 1 bytes of data, its header promises 0"),
    "huge": (npy(FLAT, bytes(24)), "promises 4000000000000"),
    "huge and empty": (npy(says("'<U0'", shape="(1000000000,)")), "elements of type"),
    "larger than the limit": (npy(says(shape="(4194304, 4194304)")), "more than the limit tensor_bytes"),
    "overflow": (npy(says(shape="(4294967296, 4294967296)")), "more than the limit tensor_bytes"),
    "overflow to 0": (npy(says(shape="(0, 4294967296, 4294967296, 1)"), b"x"), "promises 0"),
    "Python 2 integers": (npy(says(shape="(2L, 3L)"), bytes(24)), "not a plain header"),
    "absurd dimension": (npy(says(shape="(" + "9" * 400 + ",)")), "more than the limit tensor_bytes"),
    "unprintable dimension": (npy(says(shape="(" + "9" * 9000 + ",)")), "larger|not a Python dictionary"),
    "negative": (npy(says(shape="(-2, -3)"), bytes(24)), "negative"),
    "bool": (npy(says(shape="(True, 6)"), bytes(24)), "not an integer but bool"),
    "float": (npy(says(shape="(2.0, 3)"), bytes(24)), "not an integer but float"),
    "text": (npy(says(shape="('2', 3)"), bytes(24)), "not an integer but str"),
    "none": (npy(says(shape="(None,)"), bytes(24)), "not an integer but NoneType"),
    "shape is a list": (npy(says(shape="[2, 3]"), bytes(24)), "shape a tuple"),
    "shape is a number": (npy(says(shape="6"), bytes(24)), "shape a tuple"),
    "rank": (npy(says(shape="(" + "1, " * 65 + ")"), bytes(4)), "65 dimensions"),
    "order is a number": (npy(says(order="0"), bytes(24)), "True or False"),
    "key missing": (npy("{'descr': '<f4', 'shape': (6,)}", bytes(24)), "exactly the keys"),
    "key too many": (npy(says()[:-1] + "'x': 1}", bytes(24)), "exactly the keys"),
    "key is bytes": (npy(says().replace("'shape'", "b'shape'"), bytes(24)), "exactly the keys"),
    "a list": (npy("[1]", bytes(24)), "exactly the keys"),
    "a call": (npy(says(shape="print('x')"), bytes(24)), "not a Python dictionary"),
    "a comprehension": (npy(says(shape="tuple(i for i in (2, 3))"), bytes(24)), "not a Python dictionary"),
    "arithmetic": (npy(says(shape="(2 * 3,)"), bytes(24)), "not a Python dictionary"),
    "unhashable": (npy("{[]: 1}", bytes(24)), "not a Python dictionary"),
    "not closed": (npy("{'descr'", bytes(24)), "not a Python dictionary"),
    "two": (npy(says() + says(), bytes(24)), "not a Python dictionary"),
    "nul": (npy(says() + "\0", bytes(24)), "not a Python dictionary"),
    "no text": (npy("", bytes(24)), "not a Python dictionary"),
    "brackets": (npy("(" * 60_000), "not a plain header"),
    "signs": (npy(says(shape="(" + "-" * 60_000 + "1,)")), "not a plain header"),
    "attributes": (npy("a" + ".a" * 30_000), "not a plain header"),
    "conditions": (npy("1 if 1 else " * 5000 + "1"), "not a Python dictionary"),
    "negations": (npy("not " * 15_000 + "1"), "not a Python dictionary"),
    "number run into a word": (npy(says(shape="(2if 1 else 3,)")), "not a plain header"),
    "not utf-8": (b"\x93NUMPY\3\0\4\0\0\0\xff\xff\xff\xff", "not a Python dictionary"),
    "header longer than the file": (npy(says(), length=60_000), "ended early"),
    "header of 4 GB": (npy(says(), version=(2, 0), length=4_000_000_000), "a header of 4000000000 bytes"),
    "header over the limit": (npy(says() + " " * 70_000, bytes(24), (2, 0)), "a header of 7"),
    "version": (b"\x93NUMPY\4\0" + npy(says(), bytes(24))[8:], "version 4.0"),
    "minor version": (b"\x93NUMPY\1\1" + npy(says(), bytes(24))[8:], "version 1.1"),
    "magic": (b"\x93NUMPX" + npy(says(), bytes(24))[6:], "not an NPY file"),
    "zip": (b"PK\3\4" + bytes(100), "not an NPY file"),
    "empty file": (b"", "not an NPY file"),
    "key twice": (npy(says()[:-1] + "'shape': (6,)}", bytes(24)), "exactly the keys"),
    "three keys, two names": (npy("{'descr': '<f4', 'shape': (6,), 'shape': (6,)}", bytes(24)), "exactly the keys"),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_header_that_lies(folder, kind):
    data, why = LIES[kind]
    with pytest.raises(DumpError, match=why):
        header(written(folder, data))


def test_what_is_not_a_file(folder):
    for path, why in ((folder, "a directory"), (folder / "none.npy", "no such file"), ("/dev/zero", "a device")):
        with pytest.raises(DumpError, match=why):
            header(str(path))


WHOLE = npy(says("'<i2'", "True"), struct.pack("<6h", *range(6)))


def test_every_prefix_is_an_error(folder):
    for length in range(len(WHOLE)):
        with pytest.raises(DumpError):
            header(written(folder, WHOLE[:length]))


CHANGES = st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=3)


@given(CHANGES)
def test_changed_bytes(folder, changes):
    """Damage is a DumpError, or it happens to say something else that fits the file to the byte."""
    data = bytearray(WHOLE)
    for place, value in changes:
        data[place] = value
    path = written(folder, bytes(data))
    try:
        payload = header(path)
    except DumpError:
        return
    assert read(payload).nbytes == os.path.getsize(path) - payload.offset


ATOMS = st.sampled_from([*"()[{},:'2", "'descr'", "'shape'", "-1", "True", "lambda", "\\"])


@given(st.lists(ATOMS, max_size=30).map("".join))
def test_random_texts(folder, text):
    with pytest.raises(DumpError):
        header(written(folder, npy(text, bytes(24))))
