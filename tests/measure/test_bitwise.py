"""Equality bit for bit, held against plain bytes, and the patterns that planted differences make."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from npucmp.dump.layouts import to_logical
from npucmp.judge.bitwise import judge_bits
from npucmp.measure.bitwise import measure_bits, same_bytes
from npucmp.model import Device, Operator, Pair, Payload, TensorRef, Verdict
from npucmp.reruns.pattern import differing_elements, pattern

OPERATOR = Operator("add.0", "add", "add", "forward", 0, ())
X = np.random.default_rng(3).standard_normal((64, 96)).astype(np.float32)


def tensor(folder, name, values, **said) -> TensorRef:
    file = str(Path(folder, f"{name}.npy"))
    np.save(file, values)
    return TensorRef("output:0", values.dtype.name, values.shape, file, "npy")._replace(**said)


def measured(folder, x, y):
    return measure_bits(Pair(0, "output:0", OPERATOR, OPERATOR, tensor(folder, "x", x), tensor(folder, "y", y)))


def judged(folder, x, y):
    return judge_bits(measured(folder, x, y))


WIDTHS = st.sampled_from([np.uint8, np.int16, np.float16, np.float32, np.float64, np.int64])


@given(dtype=WIDTHS, data=st.binary(min_size=64, max_size=4096), place=st.none() | st.integers(0, 4095))
@example(dtype=np.float16, data=bytes([0, 0x7D, 0, 0, 0, 0xF8, 0, 0]), place=0)  # a NaN's payload beside a mask
def test_the_same_bits_are_the_same_bytes(dtype, data, place):
    x = np.frombuffer(data[: len(data) // 8 * 8], dtype)
    other = bytearray(x.tobytes())
    if place is not None:
        other[place % len(other)] ^= 1
    y = np.frombuffer(bytes(other), dtype)
    with tempfile.TemporaryDirectory() as folder:
        got = judged(folder, x, y)
    equal = np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
    assert (got.verdict is Verdict.MATCH) == equal
    assert (got.because == "the same bits") == (x.tobytes() == y.tobytes())


def test_types_that_are_not_known_are_not_called_equal(tmp_path):
    sides = [tensor(tmp_path, name, X, payload=Payload(f"{tmp_path}/{name}.npy", "odd", X.shape, 128)) for name in "xy"]
    assert same_bytes(*sides) is None


def of_pattern(folder, shape, where, by=1.0):
    """The words for a tensor in which the elements `where` differ."""
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32) + 3
    y = x.copy()
    y.reshape(-1)[where] += by
    return told(measured(folder, y, x))


def told(measurement):
    return "; ".join(reason.sentence() for reason in pattern(measurement, differing_elements(measurement)))


rows = np.arange(64 * 96).reshape(64, 96)


@given(chosen=st.sets(st.integers(0, 39), min_size=1, max_size=10), columns=st.booleans(), seed=st.integers(0, 99))
def test_whole_rows_and_columns_are_recognised_wherever_they_lie(chosen, columns, seed):
    where = np.arange(40 * 41).reshape(40, 41) if not columns else np.arange(41 * 40).reshape(41, 40).T
    with tempfile.TemporaryDirectory() as folder:
        got = of_pattern(folder, (41, 40) if columns else (40, 41), where[sorted(chosen)].ravel())
    what = "40 columns" if columns else "40 rows"
    assert got.startswith(f"in {len(chosen)} of {what} of the last axis only")


def test_differences_beyond_number_still_have_a_beginning_and_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr("npucmp.measure.bitwise.PLACES", 1000)
    monkeypatch.setattr("npucmp.measure.bitwise.READ", 512)
    assert of_pattern(tmp_path, (64, 96), np.arange(2048, 5000)).startswith("one block of 2,952 elements from 2,048 on")
    assert of_pattern(tmp_path, (64, 96), np.arange(0, 6144, 3)) == "the differing elements are scattered"


def stored(folder, name, array, shape):
    """An NC1HWC0 tensor of the logical NCHW shape, and its logical values."""
    array.tofile(Path(folder, name))
    device = Device("NC1HWC0", array.shape, "NCHW")
    payload = Payload(str(Path(folder, name)), array.dtype.name, shape, 0, device=device)
    return TensorRef("output:0", array.dtype.name, shape, payload.path, layout="NC1HWC0", payload=payload)


def on_device(folder, where, channels=64):
    x = np.zeros((2, 4, 8, 10, 16), np.float32)
    x += np.random.default_rng(2).standard_normal(x.shape)
    y = x.copy()
    y.reshape(-1)[where] += 1
    shape = (2, channels, 8, 10)
    pair = Pair(0, "output:0", OPERATOR, OPERATOR, stored(folder, "y", y, shape), stored(folder, "x", x, shape))
    assert to_logical(x, "NC1HWC0", "NCHW", shape).shape == shape
    return measure_bits(pair)


LANES = np.arange(2 * 4 * 8 * 10 * 16).reshape(2, 4, 8, 10, 16)


def test_blocks_of_c0_channels_are_recognised(tmp_path):
    got = told(on_device(tmp_path, LANES[:, 2, ::2].ravel()))
    assert got.startswith("in 1 of 4 blocks of C0=16 channels only (2), 50% of their elements; hint: a tile")
