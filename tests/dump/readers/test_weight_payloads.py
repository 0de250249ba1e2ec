"""Payloads that are made of others have the values that numpy computes of the stored ones."""

import numpy as np
import pytest

from npucmp.dump.readers.assembly import MAX, joined, reshaped, sliced, total
from npucmp.dump.readers.values import blocks
from npucmp.dump.readers.weight_payloads import (
    ENTRIES,
    paired_rows,
    product,
    scaled,
    selected,
    stack_entries,
    steps_of,
    transposed,
)
from npucmp.errors import UnsupportedError
from npucmp.model import Payload

RNG = np.random.default_rng(0)


@pytest.fixture
def stored(tmp_path):
    """Writes an array behind 8 other bytes, and returns its payload."""

    def write(array):
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.bin"
        path.write_bytes(bytes(8) + array.tobytes())
        return Payload(str(path), array.dtype.name, array.shape, 8)

    return write


def values(payload, elements=5):
    """The values of a payload, read in small blocks, in its shape."""
    found = [*blocks(payload, elements)]
    return np.concatenate(found).reshape(payload.shape) if found else np.zeros(payload.shape)


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def matrices(stored):
    """A matrix of each kind of payload, and its values."""
    a, b, low, high, one = drawn(4, 6), drawn(2, 6), drawn(4, 3), drawn(3, 6), drawn(4, 1)
    codes = RNG.integers(-8, 8, (4, 6)).astype(np.int8)
    scales = drawn(4, 2)
    return {
        "plain": (stored(a), a),
        "joined rows": (joined([stored(a), stored(b)], 0), np.concatenate([a, b])),
        "joined columns": (joined([stored(a), stored(one)], 1), np.concatenate([a, one], 1)),
        "sum": (total([stored(a), stored(a[::-1].copy())]), a + a[::-1]),
        "largest": (total([stored(a), stored(a[::-1].copy())], MAX), np.maximum(a, a[::-1])),
        "reshaped": (reshaped(stored(a.reshape(-1)), (4, 6)), a),
        "product": (product(stored(low), stored(high), 0.5), 0.5 * (low.astype(float) @ high)),
        "scaled": (scaled(stored(codes), stored(scales), (1, 3)), codes * np.repeat(scales, 3, 1)),
        "scaled by rows": (scaled(stored(codes), stored(one), (1, 6)), codes * one),
    }


KINDS = [
    "plain",
    "joined rows",
    "joined columns",
    "sum",
    "largest",
    "reshaped",
    "product",
    "scaled",
    "scaled by rows",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("elements", [1, 5, 1000])
def test_values_and_their_transpose(stored, kind, elements):
    payload, known = matrices(stored)[kind]
    assert payload.shape == known.shape
    np.testing.assert_allclose(values(payload, elements), known, rtol=1e-6)
    turned = transposed(payload)
    assert turned.shape == known.T.shape
    np.testing.assert_allclose(values(turned, elements), known.T, rtol=1e-6)
    np.testing.assert_allclose(values(transposed(turned), elements), known, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_slices_are_those_of_the_values(stored, kind):
    payload, known = matrices(stored)[kind]
    for axis, start, stop in ((0, 1, 3), (1, 0, 3), (1, 3, 6), (0, 0, 4)):
        wanted = known[start:stop] if axis == 0 else known[:, start:stop]
        np.testing.assert_allclose(values(sliced(payload, axis, start, stop)), wanted, rtol=1e-6)
        turned = values(sliced(transposed(payload), 1 - axis, start, stop))
        np.testing.assert_allclose(turned, wanted.T, rtol=1e-6)


@pytest.mark.parametrize("start, stop", [(1, 3), (0, 2), (3, 5), (1, 2), (1, 6), (2, 6), (4, 5)])
def test_columns_within_a_block_of_a_scale_have_its_scale(stored, start, stop):
    payload, known = matrices(stored)["scaled"]
    part = sliced(payload, 1, start, stop)
    np.testing.assert_allclose(values(part), known[:, start:stop], rtol=1e-6)
    np.testing.assert_allclose(values(sliced(part, 0, 1, 3)), known[1:3, start:stop], rtol=1e-6)


def test_the_last_block_of_a_scale_may_be_short(stored):
    codes, scales = RNG.integers(-8, 8, (5, 7)).astype(np.int8), drawn(3, 2)
    known = np.repeat(np.repeat(scales, 2, 0)[:5], 4, 1)[:, :7]
    payload = scaled(stored(codes), stored(scales), (2, 4))
    np.testing.assert_allclose(values(payload), codes * known)
    np.testing.assert_allclose(values(sliced(payload, 1, 4, 7)), (codes * known)[:, 4:])
    steps = steps_of(payload)
    np.testing.assert_allclose(values(steps), np.abs(known))
    np.testing.assert_allclose(values(steps_of(joined([payload, payload], 0))), np.abs(np.concatenate([known] * 2)))
    turned = steps_of(transposed(payload))
    assert turned.dtype == "float32"
    np.testing.assert_allclose(values(turned), np.abs(known).T)
    assert steps_of(stored(codes)) is None
    assert steps_of(joined([payload, stored(codes)], 0)) is None


def test_a_product_over_an_axis_of_no_elements_is_zero(stored):
    assert not values(product(stored(drawn(4, 0)), stored(drawn(0, 6)), 2.0)).any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["product", "scaled", "sum", "largest", "scaled sum"])
def test_numbers_that_are_not_finite_follow_the_standard_without_a_warning(stored, kind):
    large = drawn(4, 3)
    large[0], large[1] = np.inf, 3e38
    other, scales = drawn(3, 6), np.float32([[0], [3e38], [1], [-np.inf]])
    other[0], other[1] = -np.inf, 3e38
    with np.errstate(all="ignore"):
        made, known = {
            "product": (product(stored(large), stored(other), 2.0), 2.0 * (large.astype(float) @ other.astype(float))),
            "scaled": (scaled(stored(large), stored(scales), (1, 3)), large * scales),
            "sum": (total([stored(large), stored(-large)]), large - large),
            "largest": (total([stored(large), stored(-large)], MAX), abs(large)),
            "scaled sum": (total([stored(large)], factor=1e30), large * np.float32(1e30)),
        }[kind]
        known = known.astype(np.float32)
    np.testing.assert_allclose(values(made), known, rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_only_matrices_are_turned(stored, shape):
    payload = stored(drawn(*shape))
    assert transposed(payload) == payload


def test_a_matrix_in_a_dataset_is_turned_as_a_whole(tmp_path):
    payload = Payload(str(tmp_path / "x.h5"), "float32", (4, 6), 0, dataset="/a")
    turned = transposed(payload)
    assert turned.shape == (6, 4) and turned.parts == (payload,) and transposed(turned) == payload
    with pytest.raises(UnsupportedError):
        sliced(payload, 0, 0, 1)


@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_entries_of_a_stack(stored, axis):
    a = drawn(4, 3, 2)
    parts = np.split(a, [1], axis or 0)
    payload = stored(a) if axis is None else joined([stored(part.copy()) for part in parts], axis)
    assert [one.shape for one in stack_entries(payload)] == [(3, 2)] * 4
    for at, one in enumerate(stack_entries(payload)):
        np.testing.assert_array_equal(values(one), a[at])
    np.testing.assert_array_equal(values(selected(selected(payload, 2), 1)), a[2, 1])


def test_entries_of_a_strided_stack(stored):
    a = drawn(4, 3)
    for at, one in enumerate(stack_entries(transposed(stored(a)))):
        np.testing.assert_array_equal(values(one), a[:, at])


@pytest.mark.parametrize("shape, is_refused", [((), True), ((0, 3), True), ((3, 0), True), ((ENTRIES + 1,), True),
                                               ((ENTRIES,), False), ((1,), False)])  # fmt: skip
def test_impossible_stacks_are_refused(shape, is_refused):
    payload = Payload("x", "float32", shape, 0)
    if not is_refused:
        assert len([*stack_entries(payload)]) == shape[0]
        return
    with pytest.raises(UnsupportedError, match="a stack of shape"):
        [*stack_entries(payload)]


@pytest.mark.parametrize("columns", [None, 3])
@pytest.mark.parametrize("is_plain", [True, False])
def test_neighbouring_rows_become_halves(stored, columns, is_plain):
    a = drawn(12) if columns is None else drawn(12, columns)
    rows = [head + 2 * at + part for head in (0, 6) for part in (0, 1) for at in range(3)]
    payload = stored(a) if is_plain else joined([stored(a[:5]), stored(a[5:])], 0)
    found = paired_rows(payload, 6)
    assert found.shape == a.shape
    np.testing.assert_array_equal(values(found), a[rows])


@pytest.mark.parametrize("dtype, bits", [("int4", 4), ("float4_e2m1", 4), ("uint2", 2), ("uint1", 1)])
def test_rows_of_packed_types_are_those_of_the_values(tmp_path, dtype, bits):
    path = tmp_path / "packed.bin"
    path.write_bytes(RNG.integers(0, 256, 4 * 8 * bits // 8, dtype=np.uint8).tobytes())
    whole = Payload(str(path), dtype, (4, 8), 0)
    assert np.array_equal(values(sliced(whole, 0, 1, 3)), values(whole)[1:3])
    assert np.array_equal(values(selected(whole, 2)), values(whole)[2])
    halves = sliced(whole, 0, 0, 2), sliced(whole, 0, 2, 4)
    assert np.array_equal(values(joined(halves[::-1], 0)), np.roll(values(whole), 2, 0))


def test_a_row_of_a_packed_type_that_begins_within_a_byte_is_refused(tmp_path):
    path = tmp_path / "packed.bin"
    path.write_bytes(bytes(8))
    whole = Payload(str(path), "int4", (5, 3), 0)
    for read in (lambda: sliced(whole, 0, 1, 2), lambda: selected(whole, 1)):
        with pytest.raises(UnsupportedError, match="does not begin with a byte"):
            read()
    assert sliced(whole, 0, 2, 5).offset == 3
