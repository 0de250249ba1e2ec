"""Equality bit for bit, held against plain bytes, and the patterns that planted differences make."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from npucmp.dump.layouts import to_logical
from npucmp.judge.bitwise import judge_bits
from npucmp.localise.rerun.pattern import differing_elements, pattern
from npucmp.measure.bitwise import measure_bits, same_bytes
from npucmp.model import Device, Operator, Pair, Payload, Statistics, TensorRef, Verdict, sentences

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


def recorded(x, y):
    sides = [TensorRef("output:0", "float32", (2, 3), **said) for said in (x, y)]
    return judge_bits(measure_bits(Pair(0, "output:0", OPERATOR, OPERATOR, *sides)))


def flipped(x, *places):
    """x with the last bit of some elements turned over."""
    y = x.copy()
    y.reshape(-1).view(f"u{x.dtype.itemsize}")[list(places)] ^= 1
    return y


WIDTHS = st.sampled_from([np.uint8, np.int16, np.float16, np.float32, np.float64, np.int64])


@given(dtype=WIDTHS, data=st.binary(min_size=64, max_size=4096), place=st.none() | st.integers(0, 4095))
@example(dtype=np.float16, data=bytes([0, 0x7D, 0, 0, 0, 0xF8, 0, 0]), place=0)  # a NaN's payload beside a mask
@settings(max_examples=60, deadline=None)
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


@pytest.mark.parametrize("chunk", [1, 7, 4096])
@pytest.mark.parametrize("place", [None, 0, 2999, 6143])
def test_the_size_of_what_is_compared_at_once_does_not_matter(tmp_path, monkeypatch, chunk, place):
    monkeypatch.setattr("npucmp.measure.bitwise.CHUNK", chunk)
    x = X.reshape(-1)[:6144] if chunk > 1 else X.reshape(-1)[:64]
    y = x if place is None else flipped(x, place % len(x))
    got = same_bytes(tensor(tmp_path, "x", x), tensor(tmp_path, "y", y))
    assert got == (2 * x.nbytes if place is None else None)


def test_equal_bytes_are_not_measured(tmp_path):
    got = measured(tmp_path, X, X.copy())
    assert (got.same, got.moments, got.bytes_read) == (True, None, 2 * X.nbytes)


def test_types_that_are_not_known_are_not_called_equal(tmp_path):
    sides = [tensor(tmp_path, name, X, payload=Payload(f"{tmp_path}/{name}.npy", "odd", X.shape, 128)) for name in "xy"]
    assert same_bytes(*sides) is None


NAN, OTHER_NAN = np.float32(np.nan), np.array([0x7FC00001], np.uint32).view(np.float32)[0]
HARMLESS = [([0.0, 1.0], [-0.0, 1.0]), ([NAN, 1.0], [OTHER_NAN, 1.0]), ([NAN, 0.0, 1.0], [OTHER_NAN, -0.0, 1.0])]


@pytest.mark.parametrize("x, y", HARMLESS, ids=["zero", "NaN", "both"])
def test_signs_of_zeros_and_payloads_of_nans_are_told_and_harmless(tmp_path, x, y):
    got = judged(tmp_path, np.array(x, np.float32), np.array(y, np.float32))
    assert got.verdict is Verdict.MATCH
    assert f"{len(x) - 1} differ in the sign of a zero or the payload of a NaN, which is harmless" in got.because


DIFFERENT = [
    (np.array([2**60, 3]), np.array([2**60 + 1, 3]), "diverged"),  # equal as float64
    (np.array([-np.inf, 3.0]), np.array([-1e9, 3.0]), "nonfinite"),
    (np.array([-1e9, 3.0]), np.array([-1e10, 3.0]), "diverged"),  # two masks
    (np.array([np.nan, 3.0]), np.array([1.0, 3.0]), "nonfinite"),
    (np.array([1e-310, 3.0]), np.array([2e-310, 3.0]), "diverged"),
    (np.array([True, False]), np.array([True, True]), "diverged"),
    (np.array([1 + 2j, 3]), np.array([1 + 2.5j, 3]), "diverged"),
    (np.zeros((2, 3)), np.zeros((3, 2)), "shape"),
]


@pytest.mark.parametrize("x, y, verdict", DIFFERENT, ids=lambda value: str(value) if isinstance(value, str) else "")
def test_every_other_bit_counts(tmp_path, x, y, verdict):
    assert judged(tmp_path, x, y).verdict.value == verdict


def test_one_ulp_is_told(tmp_path):
    assert "2 of 6,144 elements differ, by up to" in judged(tmp_path, X, flipped(X, 5, 77)).because
    assert judged(tmp_path, X, flipped(X, 5, 77)).because.endswith(", 1 ulp")


STATISTICS = Statistics(3.0, -1.0, 1.0, 4.0)
RECORDS = [
    ({"checksum": "abc"}, {"checksum": "abc"}, "match"),
    ({"checksum": "abc"}, {"checksum": "abd"}, "diverged"),
    ({"statistics": STATISTICS}, {"statistics": STATISTICS}, "unknown"),
    ({"statistics": STATISTICS}, {"statistics": STATISTICS._replace(max=3.0000002)}, "diverged"),
    ({"statistics": STATISTICS}, {"statistics": STATISTICS._replace(norm=4.0000001)}, "unknown"),  # its own rounding
    ({"statistics": STATISTICS}, {"statistics": STATISTICS._replace(norm=4.001)}, "diverged"),
    ({"statistics": STATISTICS}, {}, "unknown"),
]


@pytest.mark.parametrize("x, y, verdict", RECORDS)
def test_what_records_prove(x, y, verdict):
    assert recorded(x, y).verdict.value == verdict


def test_rounded_statistics_of_a_dump_with_values_prove_nothing(tmp_path):
    values = tensor(tmp_path, "x", X)
    norm = float(np.float32(np.sqrt(np.sum(X.astype(float) ** 2)) * (1 + 1e-7)))
    told = Statistics(float(X.max()), float(X.min()), float(X.mean()), norm)
    pair = Pair(0, "output:0", OPERATOR, OPERATOR, values, TensorRef("output:0", "float32", X.shape, statistics=told))
    assert judge_bits(measure_bits(pair)).verdict is Verdict.UNKNOWN


def of_pattern(folder, shape, where, by=1.0):
    """The words for a tensor in which the elements `where` differ."""
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32) + 3
    y = x.copy()
    y.reshape(-1)[where] += by
    return told(measured(folder, y, x))


def told(measurement):
    return sentences(pattern(measurement, differing_elements(measurement)))


rows = np.arange(64 * 96).reshape(64, 96)
PLANTED = [  # shape, elements that differ, words
    ((64, 96), [7, 2000, 3333, 6000], "the differing elements are scattered"),
    (
        (64, 96),
        rows[[5, 9]].ravel(),
        "in 2 of 64 rows of the last axis only (5, 9), all of their elements; hint: a tile",
    ),
    ((64, 96), rows[5, ::2], "in 1 of 64 rows of the last axis only (5), 50% of their elements"),
    ((64, 96), rows[:, 3], "in 1 of 96 columns of the last axis only (3), all of their elements; hint: sums over"),
    ((8, 24, 32), np.arange(8 * 24 * 32).reshape(8, 24, 32)[2, :, ::3].ravel(), "in 1 of 8 slices of axis 0 only (2)"),
    # 1,845 of 2,050 elements are nine of ten; one fewer is another pattern
    (
        (64, 96),
        [*range(2048, 3892), 4097],
        "one block of 2,050 elements from 2,048 on, a multiple of 2,048; hint: memory",
    ),
    ((64, 96), [*range(2048, 3891), 4097], "the differing elements are scattered"),
    ((64, 96), np.arange(2048, 4096), "one block of 2,048 elements from 2,048 on, a multiple of 2,048; hint: memory"),
    ((10, 4096), np.r_[4096:6144, 12288:14336], "2 blocks of 2,048 elements, from 4,096, 12,288 on; hint: memory"),
    ((4, 4096), np.arange(4096, 8192), "or 1 rows of the last axis computed in another order"),
    ((64, 96), np.arange(6100, 6144), "the tail from [63, 52] on; hint: memory beyond the result"),
    ((64, 96), np.arange(1000, 1300), "one piece, from [10, 40] to [13, 51]; hint: memory overwritten"),
    ((2, 3), [4], "the differing elements are scattered"),
    ((), [0], ""),
]


@pytest.mark.parametrize("shape, where, words", PLANTED, ids=[row[2][:30] for row in PLANTED])
def test_planted_patterns_are_recognised(tmp_path, shape, where, words):
    got = of_pattern(tmp_path, shape, where)
    assert words in got and bool(words) == bool(got)


@given(chosen=st.sets(st.integers(0, 39), min_size=1, max_size=10), columns=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_whole_rows_and_columns_are_recognised_wherever_they_lie(chosen, columns, seed):
    where = np.arange(40 * 41).reshape(40, 41) if not columns else np.arange(41 * 40).reshape(41, 40).T
    with tempfile.TemporaryDirectory() as folder:
        got = of_pattern(folder, (41, 40) if columns else (40, 41), where[sorted(chosen)].ravel())
    what = "40 columns" if columns else "40 rows"
    assert got.startswith(f"in {len(chosen)} of {what} of the last axis only")


def test_only_small_differences_are_called_roundings(tmp_path):
    everywhere, few = np.arange(6144), np.random.default_rng(1).permutation(6144)[:600]
    assert of_pattern(tmp_path, (64, 96), everywhere, by=3e-7).startswith("hint: rounding")
    assert of_pattern(tmp_path, (64, 96), few, by=3e-7).startswith(
        "the differing elements are scattered; hint: rounding"
    )
    assert of_pattern(tmp_path, (64, 96), few, by=3e-3) == "the differing elements are scattered"
    assert of_pattern(tmp_path, (64, 96), everywhere, by=3e-3) == ""


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


def test_blocks_are_looked_for_where_the_device_stored_them(tmp_path):
    got = told(on_device(tmp_path, np.arange(4096, 6144)))
    assert got.startswith("one block of 2,048 elements from 4,096 on in memory (NC1HWC0), a multiple of 2,048; hint:")


def test_padding_beyond_the_logical_shape_is_harmless_and_told(tmp_path):
    got = judge_bits(on_device(tmp_path, LANES[:, 3, :, :, 12:].ravel(), channels=60))
    assert got.verdict is Verdict.MATCH
    assert "only the padding beyond the logical shape differs; hint: uninitialised padding" in got.because


def test_a_difference_beside_that_padding_counts(tmp_path):
    got = judge_bits(on_device(tmp_path, LANES[:, 3, :, :, 11:].ravel(), channels=60))
    assert got.verdict is Verdict.DIVERGED
    assert got.because.startswith("160 of 9,600 elements differ")
