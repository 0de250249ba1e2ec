"""The C kernel keeps the same contract as the one in numpy, and agrees with it."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.readers.values import ValueBytes
from npucmp.measure.kernel import library, native, numpy_kernel
from npucmp.measure.kernel.numpy_kernel import bars_for
from npucmp.model.dtypes import numpy_dtype
from tests.contracts import FLOATS, QUICK, KernelContract, assert_same, nearly, sample, spoil

pytestmark = pytest.mark.skipif(library.library() is None, reason="the C kernel was not built")


class TestNative(KernelContract):
    def measure(self, x, y, rtol=0.0, atol=0.0, start=0):
        return native.measure_block(x, y, bars_for(x.dtype.name, y.dtype.name, rtol, atol), start)

    def side(self, x):
        return native.measure_side(x)


@pytest.mark.parametrize("golden", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_agrees_with_numpy(target, golden):
    bars = bars_for(target, golden, 1e-3, 1e-5)
    for count in (1, 7, 8, 9, 1023, 1024, 1025, 5000):
        x = sample(target, count, count)
        y = nearly(x, count + 1).astype(np.float32).astype(numpy_dtype(golden))
        assert_same(native.measure_block(x, y, bars, 3), numpy_kernel.measure_block(x, y, bars, 3))


@pytest.mark.parametrize("dtype", FLOATS)
def test_agrees_where_a_few_tiles_are_not_finite_or_masked(dtype):
    x = sample(dtype, 20_000, 1)
    y = nearly(x, 2)
    x[3000:3200], y[3000:3300] = spoil(x[3000:3200], 3), spoil(y[3000:3300], 4)
    low = numpy_dtype(dtype).type(-min(1e9, float(bars_for(dtype, dtype, 0, 0).target.largest)))
    x[9000:9100] = y[9050:9100] = low
    bars = bars_for(dtype, dtype, 1e-3, 1e-5)
    assert_same(native.measure_block(x, y, bars), numpy_kernel.measure_block(x, y, bars))


@pytest.mark.parametrize("recorded", FLOATS)
@pytest.mark.parametrize("stored", FLOATS)
def test_agrees_where_values_are_stored_in_another_type_than_the_run_computed_in(stored, recorded):
    x = sample(recorded, 2000, 1).astype(np.float32).astype(numpy_dtype(stored))
    y = nearly(x, 2)
    for golden in (recorded, stored):
        bars = bars_for(recorded, golden, 1e-3, 1e-5)
        with np.errstate(all="ignore"):
            assert_same(native.measure_block(x, y, bars), numpy_kernel.measure_block(x, y, bars))


@QUICK
@given(st.integers(0, 2**32), st.sampled_from(FLOATS), st.sampled_from(FLOATS), st.integers(1, 40))
def test_any_bits_agree_with_numpy(seed, target, golden, count):
    random = np.random.default_rng(seed)
    x, y = (
        np.frombuffer(random.bytes(count * numpy_dtype(name).itemsize), np.uint8).view(numpy_dtype(name))
        for name in (target, golden)
    )
    bars = bars_for(target, golden, 1e-3, 1e-5)
    with np.errstate(all="ignore"):
        assert_same(native.measure_block(x, y, bars), numpy_kernel.measure_block(x, y, bars))


wide = pytest.mark.skipif(not library.has_avx512(), reason="no AVX-512 here, or the kernel was built without it")


def require_one_result(x, y, bars):
    """The loops for AVX-512 and those for any processor give the same moments, to the signs of zeros."""
    found = []
    for path in (0, 1):
        with mock.patch.object(native, "has_avx512", return_value=path), np.errstate(all="ignore"):
            native._prepared.cache_clear()
            found.append(repr(native.measure_block(x, y, bars, 3)))
    native._prepared.cache_clear()
    assert found[0] == found[1]


@wide
@pytest.mark.few(12)
@pytest.mark.parametrize("golden", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_every_path_gives_the_same_bits(target, golden):
    for count in (1, 3, 4, 5, 8, 15, 17, 511, 512, 513, 5000):
        x = sample(target, count, count)
        y = nearly(x, count + 1).astype(np.float32).astype(numpy_dtype(golden))
        bars = bars_for(target, golden, 1e-3, 1e-5)
        require_one_result(x, y, bars)
        require_one_result(spoil(x, 3), spoil(y, 4), bars)


@wide
@pytest.mark.parametrize("scale", [1e-42, 1e-7, 1.0, 1e4, 1e38])
def test_every_path_gives_the_same_bits_at_any_scale(scale):
    """Zeros of both signs, masks, errors of many decades, errors beyond atol and sums that overflow."""
    random = np.random.default_rng(7)
    for spread in (0.0, 1e-7, 1.0, 1e3):
        with np.errstate(all="ignore"):
            y = (random.standard_normal(3000) * scale).astype(np.float32)
            x = (y * (1 + spread * 10.0 ** random.uniform(-6, 0, len(y)))).astype(np.float32)
        y[100:160:3], x[100:160:7], x[400:420] = 0.0, -0.0, -0.0
        y[1000:1030] = x[1000:1030] = -1e9
        require_one_result(x, y, bars_for("float32", "float32", 1.3e-6, 1e-5))


@wide
@QUICK
@given(st.integers(0, 2**32), st.sampled_from(FLOATS), st.integers(1, 1100))
def test_every_path_gives_the_same_bits_for_any_bits(seed, dtype, count):
    random = np.random.default_rng(seed)
    x, y = (
        np.frombuffer(random.bytes(count * numpy_dtype(dtype).itemsize), np.uint8).view(numpy_dtype(dtype))
        for _ in range(2)
    )
    require_one_result(x, y, bars_for(dtype, dtype, 1e-3, 1e-5))


def test_results_do_not_depend_on_what_is_beside_an_array():
    x = np.arange(4096, dtype=np.float32)
    y = x * 1.5
    bars = bars_for("float32", "float32", 0.0, 0.0)
    for start in range(9):
        a, b = x[start : start + 1000], y[start : start + 1000]
        assert native.measure_block(a, b, bars) == native.measure_block(a.copy(), b.copy(), bars)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("start", [0, 1, 2, 8, 100])
def test_values_in_the_bytes_of_a_file_are_measured_like_arrays(dtype, start):
    x = np.arange(1000).astype(numpy_dtype(dtype))
    y, bars = x + x.dtype.type(1), bars_for(dtype, dtype, 0.0, 0.0)
    sides = [ValueBytes(x.dtype, bytes(start) + one.tobytes() + b"\xff", start, len(one)) for one in (x, y)]
    assert native.measure_bytes(*sides, bars) == native.measure_block(x, y, bars)


def test_types_that_c_does_not_know_are_left_to_numpy():
    x = np.arange(20_000)
    bars = bars_for("int64", "int64", 0.0, 0.0)
    assert native.measure_block(x, x + 1, bars).max_abs_exact == 1
    assert native.measure_block(x, x + 1, bars).elements == 20_000


def test_a_kernel_that_was_built_for_other_fields_is_left_alone(monkeypatch):
    monkeypatch.setattr(library, "C_FIELDS", library.C_FIELDS.replace("double xx SUM;", ""))
    assert library.library.__wrapped__() is None


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(library.SWITCH, "numpy")
    library.library.cache_clear()
    native._prepared.cache_clear()
    try:
        assert library.name() == "numpy"
        x = np.ones(10, np.float32)
        assert native.measure_block(x, x, bars_for("float32", "float32", 0.0, 0.0)).equal == 10
    finally:
        monkeypatch.delenv(library.SWITCH)
        library.library.cache_clear()
        native._prepared.cache_clear()
    assert library.name() == "native"


@pytest.mark.parametrize("x, y", [("float32", "float32"), ("float32", "bfloat16"), ("complex64", "complex64"),
                                  (">f4", ">f4"), ("int64", "int64"), ("float64", "int8"),
                                  (">f4", "float32"), ("float32", ">f4")])  # fmt: skip
def test_blocks_of_a_tensor_add_up(x, y):
    """Also of types that numpy measures, of foreign byte order, and of arrays with gaps."""
    values = np.random.default_rng(1).integers(-9, 9, (60, 2)).astype(numpy_dtype(x) if x[0] != ">" else x)
    golden = np.ones((60, 2)).astype(numpy_dtype(y) if y[0] != ">" else y)
    values[45, 0] = 100
    a, b = values[:, 0], golden[:, 0]
    if a.dtype.kind == "c":
        a, b = a.copy(), b.copy()
    bars = bars_for(a.dtype.name, b.dtype.name, 0.0, 0.0)
    total = native.Total(bars)
    assert total.moments() == native.Total(bars).moments() and total.moments().elements == 0
    for start, end in ((0, 7), (7, 8), (8, 60)):
        total.add(a[start:end], b[start:end])
    found = total.moments()
    assert_same(found, native.measure_block(np.ascontiguousarray(a), np.ascontiguousarray(b), bars))
    assert (found.elements, found.max_abs_index, found.max_abs, found.yy) == (60, 45, 99.0, 60.0)
    assert native.measure_side(a).maximum == 100 and native.measure_side(a[:0]).nan == 0
    assert native.measure_block(a[45:], b[45:], bars, 1000).max_abs_index == 1000


@pytest.mark.parametrize("target, golden", [("hifloat8", "float32"), ("hifloat8", "hifloat8"), ("int32", "float32")])
def test_floats_that_hold_another_type_have_no_ulp(target, golden):
    """A file may store a type in a wider one."""
    x, y = np.array([1.0, 2.0, 4.0], np.float32), np.array([1.0, 2.0, 3.0], np.float32)
    bars = bars_for(target, golden, 0.0, 0.0)
    found = native.measure_block(x, y, bars)
    assert_same(found, numpy_kernel.measure_block(x, y, bars))
    assert found.max_ulp is None and found.max_abs == 1.0


@pytest.mark.parametrize("unseen, masked", [((-5.0, -5.0), 2), ((-5.0, -9.0), 0)])
def test_bounds_of_masks_hold_in_blocks_too(unseen, masked):
    x, y = np.array([-5, -6, 1, 2], np.float32), np.array([-5, -7, 1, 2], np.float32)
    total = native.Total(bars_for("float32", "float32", 0.0, 0.0)._replace(unseen=unseen))
    for at in range(4):
        total.add(x[at : at + 1], y[at : at + 1])
    assert (total.moments().masked, total.moments().compared) == (masked, 4 - masked)


@pytest.mark.parametrize("other", ["float16", "float32", "float64"])
def test_a_float64_is_rounded_once_to_the_type_of_the_run(other):
    """In float32 it would lie halfway between two float16, of which the even one is 1."""
    x, y = np.array([1 + 2.0**-11 + 2.0**-40]), np.ones(1, other)
    bars = bars_for("float16", "float16", 0.0, 0.0)
    assert native.measure_block(x, y, bars).max_ulp == native.measure_block(y, x, bars).max_ulp == 1
