"""The precision of values, by their bits, counted here from the values; whole numbers beside floats; terms of sums."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.judge.precision import (
    linear_fit,
)
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Measurement, Operator, Pair, TensorRef

X = np.random.default_rng(2).standard_normal(500)
STEPS = np.round(X / 0.01)


def pair_of(target, golden) -> Pair:
    operator = Operator("quantise.0", "quantise", "quantise", "forward", 0, ())
    return Pair(0, "output:0", operator, operator, *(TensorRef("output:0", one, X.shape) for one in (target, golden)))


def mixed(target, golden, types=("int8", "float32")) -> Measurement:
    moments = measure_block(*(np.asarray(one, np.float64) for one in (target, golden)), BARS)
    return Measurement(pair_of(*types), moments)


BARS = bars_for("float64", "float64", 0.0, 0.0)


def test_the_linear_map_of_floats_to_whole_numbers():
    for measurement in (mixed(STEPS, X), mixed(X, STEPS, ("float32", "int8"))):
        fit = linear_fit(measurement)
        assert fit.correlation == pytest.approx(np.corrcoef(STEPS, X)[0, 1]) and not fit.is_identity
        assert fit.left == pytest.approx(1 / 12, rel=0.2) and not fit.is_far  # rounding to the nearest
    whole = np.round(100 * X)
    assert linear_fit(mixed(whole, whole)).is_identity and not linear_fit(mixed(whole, 2 * whole)).is_identity
    constant = linear_fit(mixed(np.full(500, 7.0), X))
    assert (constant.correlation, constant.left, constant.is_identity) == (0.0, 0.0, False)
    assert linear_fit(mixed(STEPS[::-1], X)).is_far
    for unknown in (mixed(STEPS, np.where(X > 2, np.nan, X)), mixed(STEPS + 2.0**40, X), mixed(STEPS, X * 1e200)):
        assert linear_fit(unknown) is None
    assert linear_fit(Measurement(pair_of("int8", "float32")._replace(target=None), mixed(STEPS, X).moments)) is None
