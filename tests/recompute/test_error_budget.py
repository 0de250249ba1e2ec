"""The three figures and the verdict, of arrays alone."""

import math

import numpy as np
import pytest

from npucmp.model import ReplayVerdict
from npucmp.model.dtypes import lookup
from npucmp.recompute.error_budget import ErrorBudget, evaluate_output

RNG = np.random.default_rng(7)
X = RNG.normal(size=5000)


def row(actual, exact, dtype="float32", due=ErrorBudget(), **more):
    return evaluate_output(
        3, "output:0", np.asarray(actual, float), np.asarray(exact, float), lookup(dtype), due, **more
    )


def rounded(x, dtype):
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype(float)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_rounded_result_has_a_ratio_of_one(dtype):
    found = row(rounded(X, dtype), X, dtype)
    assert found.verdict is ReplayVerdict.CLEAN and found.rms_ratio == pytest.approx(1)
    assert found.max_ratio <= 1 and abs(found.bias) < 0.05 and found.nonfinite == 0


def test_rounding_is_due_even_where_float64_happens_to_need_none():
    """A sum of numbers of few digits that a kernel rounds once on its way."""
    few, some = np.round(X * 64) / 64, X > 0
    assert row(few * (1 + 2.0**-24 * some), few, due=ErrorBudget(0.0, "noise")).verdict is ReplayVerdict.CLEAN
    assert row(few * (1 + 2.0**-20 * some), few, due=ErrorBudget(0.0, "noise")).verdict is ReplayVerdict.GUILTY


def test_one_large_element_may_be_rounded_badly_and_all_of_them_may_not():
    x = np.where(np.arange(200) == 7, 100.0, X[:200])
    nearest = rounded(x, "bfloat16")
    next_one = rounded(nearest * (1 + 2.0**-7.5), "bfloat16")
    beside = np.where(np.arange(200) == 7, next_one, nearest)
    assert row(beside, x, "bfloat16").verdict is ReplayVerdict.CLEAN
    assert row(next_one, x, "bfloat16").verdict is ReplayVerdict.GUILTY


@pytest.mark.parametrize("dtype, factor", [("float32", 1 + 2e-6), ("float16", 1.004), ("bfloat16", 1.02)])
def test_a_small_scale_is_guilty(dtype, factor):
    assert row(rounded(X * factor, dtype), X, dtype).verdict is ReplayVerdict.GUILTY


def test_one_wrong_element_is_guilty_by_its_own_ratio():
    wrong = rounded(X, "bfloat16")
    wrong[17] *= 1.2
    found = row(wrong, X, "bfloat16")
    assert (
        found.verdict is ReplayVerdict.GUILTY and found.max_abs_index == 17 and found.rms_ratio < 10 < found.max_ratio
    )


def test_truncation_is_seen_by_its_bias():
    """bfloat16 cut off instead of rounded: the largest error of an element is only twice what rounding leaves."""
    cut = (X.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    found = row(cut, X, "bfloat16", due=ErrorBudget(0.0, "rounding"))
    assert found.bias == pytest.approx(0.72, abs=0.05) and found.verdict is ReplayVerdict.GUILTY


def test_noise_that_is_due_is_no_fault():
    noise = 20 * 2.0**-24 * X * RNG.normal(size=X.size)
    due = ErrorBudget(20 * 2.0**-24 * np.abs(X), "noise")
    assert row(rounded(X + noise, "float32"), X, due=due).verdict is ReplayVerdict.CLEAN
    assert row(rounded(X + noise, "float32"), X).verdict is ReplayVerdict.GUILTY
    assert row(rounded(X + noise, "float32"), X, scale=20.0).verdict is ReplayVerdict.CLEAN
    assert row(rounded(X + noise, "float32"), X, known=20.0).verdict is ReplayVerdict.CLEAN


@pytest.mark.parametrize("actual, exact, dtype, count", [
    ([1.0, math.nan], [1.0, 2.0], "float32", 1),
    ([1.0, 2.0], [1.0, math.nan], "float32", 1),
    ([math.inf, 1.0], [1.0, 1.0], "float16", 1),
    ([math.inf, -math.inf], [math.inf, math.inf], "float32", 1),
    ([math.inf, 65504.0], [65519.0, 70000.0], "float16", 0),  # out of the range of the type: both are right
    ([math.nan, -math.inf], [math.nan, -math.inf], "float32", 0),
])  # fmt: skip
def test_nan_and_inf_at_other_places(actual, exact, dtype, count):
    found = row(actual, exact, dtype)
    assert found.nonfinite == count
    assert (found.verdict is ReplayVerdict.GUILTY) == bool(count)


def test_copies_integers_and_truth_are_equal_or_guilty():
    exact = ErrorBudget(0.0, "exact")
    assert row(X.astype(np.float32), X, due=exact).verdict is ReplayVerdict.CLEAN
    changed = X.astype(np.float32).astype(float)
    changed[3] *= 1 + 2**-23
    found = row(changed, X.astype(np.float32), due=exact)
    assert (found.verdict, found.max_abs_index) == (ReplayVerdict.GUILTY, 3)
    assert "1 of 5,000 elements differ" in found.explanation
    assert row([np.float32(1e-40), 0.0], [1e-40, 1e-40], due=exact).verdict is ReplayVerdict.CLEAN  # flushed to zero
    ints = evaluate_output(0, "output:0", np.array([1, 2]), np.array([1, 3]), lookup("int64"), ErrorBudget())
    assert ints.verdict is ReplayVerdict.GUILTY and ints.budget == "exact"


def test_where_it_is_wrong():
    wrong = rounded(X, "float32").reshape(50, 100)
    wrong[7:9, 40:44] *= 1.01
    exact = X.reshape(50, 100)
    found = evaluate_output(0, "output:0", wrong, exact, lookup("float32"), ErrorBudget())
    assert found.where == "[7:9, 40:44]"
    assert evaluate_output(0, "output:0", exact * 1.01, exact, lookup("float32"), ErrorBudget()).where == ""
    lost = rounded(X, "float32").reshape(50, 100)
    lost[3, 5] = math.nan
    assert evaluate_output(0, "output:0", lost, exact, lookup("float32"), ErrorBudget()).where == "[3, 5]"


def test_plain_figures():
    """By hand: errors 0 and 0.5 of values 1 and 2."""
    found = row([1.0, 2.5], [1.0, 2.0])
    assert found.rel_l2 == pytest.approx(0.5 / math.sqrt(5))
    assert found.mere == pytest.approx(0.125, rel=1e-6) and found.mare == pytest.approx(0.25, rel=1e-6)
    assert found.rmse == pytest.approx(0.5 / math.sqrt(2)) and found.max_abs_err == 0.5
    assert found.rel_l2_u == pytest.approx(found.rel_l2 * 2**24)
    assert found.vendor_mixed is False and found.vendor_mere_mare is False


def test_empty_and_zero_outputs_are_clean():
    assert row([], []).verdict is ReplayVerdict.CLEAN
    assert row(np.zeros(9), np.zeros(9)).verdict is ReplayVerdict.CLEAN
    assert row(np.full(9, 1e-3), np.zeros(9)).verdict is ReplayVerdict.GUILTY


def test_figures_survive_values_of_any_size():
    found = row(X * 1e200, X * 1e200, "float64")
    assert found.verdict is ReplayVerdict.CLEAN and found.rmse == 0
