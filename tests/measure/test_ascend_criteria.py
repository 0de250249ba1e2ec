"""The vendor's figures, against loops over Python's own floats."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from npucmp.errors import DumpError
from npucmp.measure.ascend_criteria import BARS, passes_mere_mare, passes_mixed, vendor_of
from npucmp.model import Operator, Pair, TensorRef

TYPES = {
    "float16": (np.float16, 2.0**-10),
    "bfloat16": (ml_dtypes.bfloat16, 2.0**-7),
    "float32": (np.float32, 2.0**-23),
}
random = np.random.default_rng(5)


def pair(folder, target, golden, dtype=None):
    """A pair of .npy files; bfloat16 lies in float32, as dumps keep it."""
    sides = []
    for name, values in (("target", target), ("golden", golden)):
        np.save(folder / f"{name}.npy", np.asarray(values, np.float32 if dtype == "bfloat16" else None))
        kind = dtype or str(np.asarray(values).dtype)
        shape = np.shape(values)
        sides.append(TensorRef("output:0", kind, shape, file=str(folder / f"{name}.npy"), encoding="npy", label=name))
    op = Operator("op", "op", "op", "forward", 0, tuple(sides))
    return Pair(0, "output:0", op, op, *sides, "name", 1.0)


def plain(target, golden, dtype):
    """The same figures, element by element: mere, mare, share inside, small ones, wrong ones, largest, in ulp."""
    bars, ulp = BARS[dtype], TYPES[dtype][1]
    tiny = (
        float(ml_dtypes.finfo(TYPES[dtype][0]).tiny) if dtype == "bfloat16" else float(np.finfo(TYPES[dtype][0]).tiny)
    )
    both = [(float(x), float(y)) for x, y in zip(target.ravel(), golden.ravel())]
    away = [abs(x - y) for x, y in both]
    relative = [abs(x - y) / (abs(y) + 1e-7) for x, y in both]
    inside = [abs(x - y) <= bars.atol + bars.rtol * abs(y) for x, y in both]
    small = [abs(x - y) for x, y in both if abs(y) < bars.small]
    ulps = [abs(x - y) / (ulp * max(abs(y), tiny)) for x, y in both]
    wrong = sum(one > bars.small_error for one in small)
    return (math.fsum(relative) / len(both), max(relative), sum(inside) / len(both), len(small), wrong, max(away),
            max(ulps))  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("error", [0.0, 1e-5, 3e-3, 0.5])
def test_figures_and_verdicts(tmp_path, dtype, error):
    kind, _ = TYPES[dtype]
    golden = (random.standard_normal((7, 90)) * 10 ** random.uniform(-6, 1, (7, 90))).astype(kind)
    target = (golden.astype(np.float64) * (1 + error * random.standard_normal((7, 90)))).astype(kind)
    found = vendor_of(pair(tmp_path, target.astype(kind), golden, dtype))
    mere, mare, inside, small, wrong, largest, ulps = plain(target, golden, dtype)
    assert (found.dtype, found.compared, found.mismatched) == (dtype, 630, 0)
    assert (found.mere, found.mare) == (pytest.approx(mere), pytest.approx(mare))
    assert (found.inside, found.small, found.small_wrong) == (pytest.approx(inside), small, wrong)
    assert found.largest == pytest.approx(largest)
    bars = BARS[dtype]
    assert found.mixed == (inside >= 0.99 and (largest <= bars.most or ulps <= 32))
    assert found.mere_mare == (mere < bars.mean and mare < 10 * bars.mean)
    assert small > 20 and found.limits["rtol"] == bars.rtol


@pytest.mark.parametrize(("value", "passes"), [(np.nan, False), (np.inf, False), (None, True)])
def test_one_side_that_is_not_finite_fails(tmp_path, value, passes):
    """NaN and Inf at the same places agree."""
    golden = np.ones(1000, np.float32)
    golden[:2] = np.nan, -np.inf
    target = golden.copy()
    target[7] = target[7] if value is None else value
    found = vendor_of(pair(tmp_path, target, golden))
    assert (found.mixed, found.mere_mare, found.mismatched) == (passes, passes, int(not passes))
    assert math.isinf(found.mere) != passes


def test_large_values_may_be_off_by_ulps(tmp_path):
    """What is beyond the limit of the type, and yet within 32 units in the last place."""
    golden = np.full(4, 1e6, np.float32)
    target = golden + np.float32(0.0625 * 16)
    found = vendor_of(pair(tmp_path, target, golden))
    assert found.largest == 1.0 > BARS["float32"].most and found.mixed


def test_limits_are_those_that_were_published():
    """rtol, atol, largest error, mean relative error, small values and their largest error, of the vendor's tables."""
    assert {name: tuple(math.log2(one) for one in bars[:2] + bars[3:]) for name, bars in BARS.items()} == {
        "float16": (-9, -9, -10, -11, -16),
        "bfloat16": (-6, -6, -7, -8, -16),
        "float32": (-10, -16, -13, -14, -30),
    }
    assert [bars.most for bars in BARS.values()] == [0.1, 1.0, 0.01]


@pytest.mark.parametrize(
    ("inside", "largest", "ulps", "passes"),
    [
        (0.99, 1e-2, 33.0, True),
        (0.99, 2e-2, 32.0, True),
        (0.99, 2e-2, 32.5, False),
        (0.985, 1e-2, 32.0, False),
        (1.0, 1e-2, 33.0, True),
    ],
)
def test_the_mixed_tolerance_at_its_limits(inside, largest, ulps, passes):
    """99 % of the elements, and the largest error of float32 or 32 units in the last place; limits are inside."""
    assert passes_mixed(BARS["float32"], inside, largest, ulps) == passes


@pytest.mark.parametrize(
    ("mere", "mare", "passes"),
    [
        (2.0**-14, 2.0**-10, True),
        (2.0**-13, 2.0**-10, False),
        (2.0**-14, 10 * 2.0**-13, False),
        (2.0**-14, 9 * 2.0**-13, True),
    ],
)
def test_the_older_rule_at_its_limits(mere, mare, passes):
    """2^-13 for the mean of float32 and ten times as much for the largest; limits are outside."""
    assert passes_mere_mare(BARS["float32"], mere, mare) == passes


def test_the_coarser_type_decides(tmp_path):
    """On either side."""
    golden = random.standard_normal(8)
    (tmp_path / "a").mkdir()
    short = pair(tmp_path, golden.astype(np.float16), golden.astype(np.float16))
    long = pair(tmp_path / "a", golden.astype(np.float32), golden.astype(np.float32))
    assert vendor_of(short._replace(golden=long.golden)).dtype == "float16"
    assert vendor_of(long._replace(golden=short.golden)).dtype == "float16"
    assert vendor_of(long).dtype == "float32"


def test_nothing_is_told_of_what_cannot_be_held_against_it(tmp_path):
    """No limits for the type, other shapes, no partner, no file; an empty tensor passes."""
    (tmp_path / "a").mkdir()
    for kind in (float, int, bool):
        assert vendor_of(pair(tmp_path, np.ones(3, kind), np.ones(3, kind))) is None
    one = pair(tmp_path, np.ones(3, np.float32), np.ones(3, np.float32))
    assert vendor_of(one) is not None
    other = pair(tmp_path / "a", np.ones(4, np.float32), np.ones(4, np.float32))
    assert vendor_of(one._replace(golden=other.golden)) is None
    assert vendor_of(one._replace(golden=None)) is None
    with pytest.raises(DumpError, match="no such file"):
        vendor_of(one._replace(golden=one.golden._replace(file=str(tmp_path / "gone.npy"))))
    empty = vendor_of(pair(tmp_path, np.ones((0, 3), np.float32), np.ones((0, 3), np.float32)))
    assert (empty.compared, empty.mixed, empty.mere_mare) == (0, True, True)
