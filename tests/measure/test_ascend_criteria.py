"""The vendor's figures, against loops over Python's own floats."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.errors import DumpError
from npucmp.measure.ascend_criteria import BARS, passes_mixed, vendor_of
from npucmp.model import Operator, Pair, TensorRef


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
