"""Whole numbers that do not come from rounding to a narrow type, by their bits, counted here from the values."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.judge.precision import is_counted, is_quantised, linear_fit
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Measurement, Moments, Operator, Pair, Side, TensorRef

FLOAT16, BFLOAT16 = 2.0**-11, 2.0**-8  # unit round-off


def side(values) -> Side:
    """The facts on whole or half numbers that need at most 11 bits each."""
    doubled = [int(2 * abs(one)) for one in values if one]
    last = [one & -one for one in doubled]
    bits = max((one // low).bit_length() for one, low in zip(doubled, last))
    return Side(minimum=min(values), maximum=max(values), bits=bits, last_bit=min(last) / 2)


COUNTED = {
    "bfloat16 cannot hold them": (np.arange(513.0, 1024.0), BFLOAT16),
    "float16 can, but its steps are finer": (np.arange(1.0, 512.0), FLOAT16),
}
ROUNDED = {
    "a mask of whole numbers needs few bits": (np.array([0.0, 1.0, 200.0]), FLOAT16),
    "steps as coarse as 1 come from rounding": (np.array([1040.0, 2000.0]), FLOAT16),
    "halves are no whole numbers": (np.arange(0.5, 400.0), FLOAT16),
}


@pytest.mark.parametrize("values, round_off", [*COUNTED.values(), *ROUNDED.values()], ids=[*COUNTED, *ROUNDED])
def test_whole_numbers_that_were_counted(values, round_off):
    moments = Moments(len(values), target=side(values), golden=side(values))
    expected = any(values is one for one, _ in COUNTED.values())
    assert is_counted(Measurement(None, moments), round_off) == expected  # type: ignore[arg-type]


def test_one_side_of_few_bits_decides():
    """Both sides must be counts: the other may be a mask."""
    moments = Moments(2, target=side(np.arange(1.0, 512.0)), golden=side(np.array([1.0, 200.0])))
    assert not is_counted(Measurement(None, moments), FLOAT16)  # type: ignore[arg-type]
    assert not is_counted(Measurement(None), FLOAT16) and not is_counted(Measurement(None, moments), 0.0)  # type: ignore[arg-type]


X = np.random.default_rng(2).standard_normal(500)
STEPS = np.round(X / 0.01)


def pair_of(target, golden) -> Pair:
    operator = Operator("quantise.0", "quantise", "quantise", "forward", 0, ())
    return Pair(0, "output:0", operator, operator, *(TensorRef("output:0", one, X.shape) for one in (target, golden)))


def mixed(target, golden, types=("int8", "float32")) -> Measurement:
    moments = measure_block(*(np.asarray(one, np.float64) for one in (target, golden)), BARS)
    return Measurement(pair_of(*types), moments)


BARS = bars_for("float64", "float64", 0.0, 0.0)


@pytest.mark.parametrize(
    "measurement, counts",
    [
        (mixed(STEPS, X), True),
        (mixed(X, STEPS, ("float32", "int32")), True),
        (mixed(STEPS, X, ("int64", "float32")), False),  # wider than a sum of products
        (mixed(STEPS, X, ("float32", "float32")), False),
        (mixed(STEPS, X, ("int8", "int8")), False),
        (mixed(np.round(X), X), False),  # off by less than one step
        (mixed(np.round(100 * X), np.round(100 * X) + np.eye(1, 500)[0] * 9), False),  # the numbers themselves
        (mixed(STEPS[::-1], X), False),  # no scale relates the two
        (mixed(np.where(X > 0, 1.0, 0.0), np.where(X > 0, 1.5, 0.0)), False),  # a difference below one step
        (mixed(np.full(500, 7.0), X), True),
        (mixed(STEPS, np.where(X > 2, np.nan, X)), True),  # unknown: sums of NaN do not decide
        (mixed(STEPS + 2.0**40, X, ("int32", "float32")), True),  # the spread is below the rounding of the sums
        (mixed(STEPS, X * 1e200, ("int32", "float64")), True),  # the squares exceed float64
        (Measurement(pair_of("int8", "float32")), False),
    ],
)
def test_whole_numbers_that_may_count_the_steps_of_floats(measurement, counts):
    assert is_quantised(measurement) is counts


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
