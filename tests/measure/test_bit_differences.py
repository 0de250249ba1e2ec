"""The places, the counts and the bits of differing elements, of crafted values."""

import math

import numpy as np
import pytest

from npucmp.measure import bitwise
from npucmp.measure.bitwise import differences, in_one_piece, measure_bits, same_bytes
from npucmp.model import Device, Payload
from tests.measure.craft import paired, stored

X = np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4)


def changed(places, by=1.0):
    y = X.copy()
    y.reshape(-1)[list(places)] += by
    return y


def found(folder, x, y):
    return differences(stored(folder, x), stored(folder, y))


@pytest.mark.parametrize("read", [1, 5, 1 << 16])
@pytest.mark.parametrize("places", [[0], [11], [2, 3, 7], [*range(12)]])
def test_differing_elements_are_counted_from_the_first_to_the_last(tmp_path, monkeypatch, read, places):
    monkeypatch.setattr(bitwise, "READ", read)
    one = found(tmp_path, changed(places), X)
    assert (one.number, one.first, one.end) == (len(places), places[0], places[-1] + 1)
    assert one.places.tolist() == places
    assert (one.picture.dtype, one.picture.rows, one.picture.columns) == ("float32", 3, 4)
    assert [at for at, count in enumerate(one.picture.counts) if count] == places


def test_no_difference_has_no_picture(tmp_path):
    assert found(tmp_path, X, X.copy()) == (0, 0, 0, None, None)
    bare = stored(tmp_path, X)._replace(file="")
    for sides in ((bare, stored(tmp_path, X + 1)), (stored(tmp_path, X + 1), bare)):
        assert differences(*sides) == (0, 0, 0, None, None)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    "x, y, differ",
    [
        (NAN, NAN, False),
        (INF, INF, False),
        (INF, -INF, True),
        (INF, NAN, True),
        (NAN, 1.0, True),
        (1.0, NAN, True),
        (0.0, -0.0, False),
        (1e-320, 0.0, True),
    ],
)
def test_elements_that_are_not_finite_differ_by_kind(tmp_path, x, y, differ):
    one = found(tmp_path, np.array([1.0, x]), np.array([1.0, y]))
    assert one.number == differ and (not differ or one.places.tolist() == [1])


def test_whole_numbers_beyond_float64_differ(tmp_path):
    assert found(tmp_path, np.array([2**60, 5]), np.array([2**60 + 1, 5])).places.tolist() == [0]


@pytest.mark.parametrize("most, kept", [(4, True), (3, True), (2, False), (1, False)])
def test_places_are_kept_up_to_a_number(tmp_path, monkeypatch, most, kept):
    monkeypatch.setattr(bitwise, "READ", 4)
    monkeypatch.setattr(bitwise, "PLACES", most)
    one = found(tmp_path, changed([1, 6, 9]), X)
    assert (one.number, one.first, one.end) == (3, 1, 10)
    assert (one.places.tolist() if one.places is not None else None) == ([1, 6, 9] if kept else None)


@pytest.mark.parametrize(
    "dtype, bits, counts",
    [
        ("uint8", 8, {0: 2, 7: 1}),
        ("int16", 16, {8: 2, 15: 1}),
        ("float32", 32, {24: 2, 31: 1}),
        (">f4", 32, {24: 2, 31: 1}),
        ("int64", 64, {56: 2, 63: 1}),
    ],
)
def test_the_bits_that_differ_are_counted_from_the_highest(tmp_path, dtype, bits, counts):
    """Two elements differ in the eighth bit from below, and one of them in the lowest too."""
    native = np.dtype(dtype).newbyteorder("=")
    unsigned = f"u{native.itemsize}"
    x = np.array([64, 65, 66], unsigned)
    y = x ^ np.array([0, 128, 129], unsigned)
    sides = [one.view(native).astype(dtype) for one in (x, y)]
    picture = found(tmp_path, *sides).picture
    assert len(picture.bits) == bits
    assert {at: count for at, count in enumerate(picture.bits) if count} == counts


def test_unequal_types_and_complex_numbers_have_no_common_bits(tmp_path):
    for x, y in ((X, (X + 1).astype(np.float64)), (X + 1j, X + 2j)):
        one = found(tmp_path, x.astype(np.complex64) if x.dtype.kind == "c" else x,
                    y.astype(np.complex64) if y.dtype.kind == "c" else y)  # fmt: skip
        assert one.number == 12 and one.picture.bits == ()


def test_bits_are_counted_up_to_a_number(tmp_path, monkeypatch):
    monkeypatch.setattr(bitwise, "READ", 4)
    monkeypatch.setattr(bitwise, "PLACES", 8)
    x = X.view(np.uint32) ^ np.uint32(1)
    one = found(tmp_path, x.view(np.float32), X)
    assert one.picture.bits[-1] == 8 and sum(one.picture.counts) == 12


@pytest.mark.parametrize("change, one", [({}, True), ({"strides": (9,)}, False), ({"dataset": "x"}, False),
                                         ({"parts": (Payload("x", "int8", (1,), 0),)}, False)])  # fmt: skip
def test_values_without_gaps_lie_in_one_piece(change, one):
    assert in_one_piece(Payload("x", "float32", (3,), 0, **change)) is one


def test_equal_bytes_of_one_type_and_layout_are_the_same(tmp_path):
    x, y = stored(tmp_path, X), stored(tmp_path, X)
    payload = Payload(x.file, "float32", (3, 4), 128)
    known = x._replace(payload=payload)
    assert same_bytes(x, y) == same_bytes(known, y) == 96
    for change in (
        {"dtype": "int32"},
        {"shape": (4, 3)},
        {"byteorder": ">"},
        {"device": Device("NC1HWC0", (3, 4))},
        {"strides": (4, 1)},
        {"offset": 124},
    ):
        assert same_bytes(x._replace(payload=payload._replace(**change)), y) is None
        assert same_bytes(y, x._replace(payload=payload._replace(**change))) is None
    assert same_bytes(x._replace(file=""), y) is None and same_bytes(x, y._replace(file=f"{tmp_path}/none")) is None


def test_one_side_is_not_read(tmp_path):
    for pair in (paired(stored(tmp_path, X), None), paired(None, stored(tmp_path, X))):
        found = measure_bits(pair)
        assert (found.pair, found.moments, found.same, found.bytes_read) == (pair, None, None, 0)
