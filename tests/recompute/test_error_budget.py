"""The three figures and the verdict, of arrays alone."""

import numpy as np

from npucmp.model import ReplayVerdict
from npucmp.model.dtypes import lookup
from npucmp.recompute.error_budget import ErrorBudget, evaluate_output

RNG = np.random.default_rng(7)
X = RNG.normal(size=5000)


def row(actual, exact, dtype="float32", due=ErrorBudget(), **more):
    return evaluate_output(
        3, "output:0", np.asarray(actual, float), np.asarray(exact, float), lookup(dtype), due, **more
    )


def test_empty_and_zero_outputs_are_clean():
    assert row([], []).verdict is ReplayVerdict.CLEAN
    assert row(np.zeros(9), np.zeros(9)).verdict is ReplayVerdict.CLEAN
    assert row(np.full(9, 1e-3), np.zeros(9)).verdict is ReplayVerdict.GUILTY


def test_figures_survive_values_of_any_size():
    found = row(X * 1e200, X * 1e200, "float64")
    assert found.verdict is ReplayVerdict.CLEAN and found.rmse == 0
