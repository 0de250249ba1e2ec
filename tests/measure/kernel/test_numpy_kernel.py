"""The reference kernel keeps the contract."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import pytest

from npucmp.measure.kernel import library, native, numpy_kernel
from tests.contracts import KernelContract, plain


class TestNumpyKernel(KernelContract):
    def measure(self, x, y, rtol=0.0, atol=0.0, start=0):
        bars = numpy_kernel.bars_for(x.dtype.name, y.dtype.name, rtol, atol)
        return numpy_kernel.measure_block(x, y, bars, start)

    def side(self, x):
        return numpy_kernel.measure_side(x)


BUILT = [one for end in EXTENSION_SUFFIXES for one in Path(native.__file__).parent.glob(f"_native*{end}")]


@pytest.mark.skipif(not BUILT, reason="the C kernel was not built")
def test_the_compiled_kernel_is_used():
    """The tests of the compiled kernel would be skipped without it."""
    assert library.library.__wrapped__() is not None


BOTH = {"numpy": numpy_kernel.measure_block, "in use": native.measure_block}


def measured(kernel, x, y, target="float64", golden="float64", **more):
    bars = numpy_kernel.bars_for(target, golden, more.get("rtol", 0.0), more.get("atol", 0.0))
    return BOTH[kernel](np.array(x, target), np.array(y, golden), bars)


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(
    "x, counts", [(1000.5, (1, 1)), (1001.0, (0, 1)), (1004.5, (0, 1)), (1005.0, (0, 0)), (994.5, (0, 0))]
)
def test_relative_errors_are_below_a_thousandth_and_five_thousandths(kernel, x, counts):
    found = measured(kernel, [x], [1000.0])
    assert (found.below_1e3, found.below_5e3) == counts


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(
    "x, y, outside", [(6.0, 4.0, 0), (6.5, 4.0, 1), (-6.0, -4.0, 0), (-6.5, -4.0, 1), (1.5, 0.0, 1)]
)
def test_an_element_is_outside_the_bar_if_it_exceeds_it(kernel, x, y, outside):
    """The bar is 1 and a quarter of the golden."""
    assert measured(kernel, [x], [y], rtol=0.25, atol=1.0).outside == outside


@pytest.mark.parametrize(
    "x, target, y, golden",
    [
        (2**63 - 1, "int64", -(2**31), "int32"),
        (-(2**63), "int64", 2**31 - 1, "int32"),
        (2**64 - 1, "uint64", 1, "uint8"),
        (2**63 + 5, "uint64", -3, "int32"),
        (2**63 - 1, "uint64", -(2**63), "int64"),
        (0, "uint64", -1, "int64"),
        (0, "uint64", 0, "int64"),
        (2**31, "uint32", -(2**31), "int32"),
        (2**53 + 1, "uint64", 2**53, "int64"),
        (-1, "int8", 2**63 + 1, "uint64"),
        (1, "bool", 2**64 - 1, "uint64"),
        (2**64 - 1, "uint64", 1, "bool"),
    ],
)
def test_integers_of_two_types_have_an_exact_distance(x, target, y, golden):
    for sides in ((x, y, target, golden), (y, x, golden, target)):
        found = measured("numpy", [sides[0]], [sides[1]], *sides[2:])
        assert (found.max_abs_exact, found.sum_d) == (abs(x - y), float(sides[0] - sides[1]))


@pytest.mark.parametrize("x, y", [([1.0, 2.0], [1.0, 2.0]), ([1.0, np.nan], [1.0, np.nan]), ([-1e9, 3.0], [-1e9, 3.0])])
def test_without_masking_all_values_are_data(x, y):
    bars = numpy_kernel.bars_for("float32", "float32", 0.0, 0.0)
    x, y = np.array(x, np.float32), np.array(y, np.float32)
    found = numpy_kernel.measure_block(x, y, bars._replace(masking=False))
    assert (found.masked, found.compared) == (0, np.isfinite(x).sum())
    assert numpy_kernel.measure_block(x, y, bars).masked == np.count_nonzero(x == -1e9)
    assert found.target.hash == found.golden.hash == numpy_kernel.measure_side(x).hash


@pytest.mark.parametrize(
    "unseen, masked", [((-5.0, -6.0), 1), ((-4.0, -6.0), 2), ((-4.0, -5.0), 3), ((-9.0, -5.0), 0), ((-4.0, -9.0), 0)]
)
def test_values_at_or_below_the_bounds_of_both_sides_are_masks(unseen, masked):
    bars = numpy_kernel.bars_for("float32", "float32", 0.0, 0.0)._replace(unseen=unseen)
    x, y = np.array([-5, -4, -4, 1], np.float32), np.array([-7, -6, -5, 2], np.float32)
    found = numpy_kernel.measure_block(x, y, bars)
    assert (found.masked, found.compared, found.outside) == (masked, 4 - masked, 4)
    assert found.sum_dd == sum([4.0, 4.0, 1.0, 1.0][masked:])


SHORT = {
    "bfloat16": [1 + 2.0**-7, 3.0, 0.0, 2.0**-100, -1.5, 5.0],
    "float16": [1 + 2.0**-10, 3.0, 0.0, 2.0**-20, -1.5, 1 + 2.0**-7],
    "powers of two": [1.0, -2.0, 0.25, 2.0**-120],
    "zeros": [0.0, -0.0],
    "12 bits": [1.0, 1 + 2.0**-11],
    "11 bits": [1.0, 1 + 2.0**-10],
}


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("y", SHORT.values(), ids=SHORT)
def test_the_bits_that_values_of_float32_need(kernel, y):
    golden = np.array(y, np.float32)
    for target in (golden, golden / 2, golden * np.float32(1 + 2.0**-20)):
        found, expected = measured(kernel, target, golden, "float32", "float32"), plain(target, golden)
        assert found.target[7:12] == expected.target[7:12] and found.golden[7:12] == expected.golden[7:12]


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(
    "values, bits",
    [*((y, None) for y in SHORT.values()), ([1 + 2.0**-23, 3.0], 24), ([1 + 2.0**-24], 53), ([1e39, 1.0], 53),
     ([2.0**-149], 24), ([2.0**-150], 53), ([0.0], 0)],
)  # fmt: skip
def test_values_of_float64_may_be_numbers_of_a_narrower_type(kernel, values, bits):
    """Blocks before and behind, which need fewer or more bits, change nothing."""
    x, single = np.array(values), np.array(values, np.float32) if bits != 53 else None
    for y in (x, 2 * x + 1.0):
        found = measured(kernel, x, y, "float64", "float64").target
        assert (
            found.bits == bits
            if single is None
            else (found[7:12] == measured(kernel, single, 2 * single + 1, "float32", "float32").target[7:12])
        )
    many = np.concatenate([np.ones(40000), x, np.full(40000, 1 + 2.0**-20)])
    assert measured(kernel, many, many, "float64", "float64").golden.bits == max(bits or 0, 24)


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(
    "power, bits", [(-126, 1), (-127, 2), (-133, 8), (-134, 9), (-136, 11), (-137, 24), (-149, 24)]
)
def test_a_subnormal_number_needs_the_bits_down_from_the_smallest_normal_one(kernel, power, bits):
    """The smallest number of bfloat16 is 2^-133."""
    x = [2.0**power]
    assert measured(kernel, x, x, "float32", "float32").target.bits == bits


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("rtol, outside", [(1.0, (0, 1)), (0.5, (1, 1)), (1e34, (0, 0))])
def test_masks_of_two_types_are_outside_the_bar_of_the_golden(kernel, rtol, outside):
    low, high = [-65504.0, 1.0], [-3.4028234663852886e38, 1.0]
    found = [
        measured(kernel, *sides, rtol=rtol)
        for sides in ((low, high, "float16", "float32"), (high, low, "float32", "float16"))
    ]
    assert [(one.masked, one.outside) for one in found] == [(1, outside[0]), (1, outside[1])]
