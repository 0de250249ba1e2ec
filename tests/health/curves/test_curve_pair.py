"""Two curves: a small regression is trained with its batches in one order and in another, well and with a fault."""

import numpy as np

from npucmp.health.curves.curve import Curve
from npucmp.health.curves.curve_pair import compare_curves

STEPS = 600
rng = np.random.default_rng(0)
X = rng.normal(size=(512, 12))
TRUTH = rng.normal(size=12)
Y = X @ TRUTH + rng.normal(size=512)


def trained(order=0, rate=0.02, frozen=0, late=1.0, noise=0.0, steps=STEPS):
    """The loss of stochastic gradient descent, batch by batch."""
    drawn, weight, losses = np.random.default_rng(order), np.zeros(12), []
    for step in range(steps):
        batch = drawn.integers(0, 512, 8)
        error = X[batch] @ weight - Y[batch]
        losses.append(float(error @ error / 8))
        gradient = X[batch].T @ error / 4 * (1 + noise * np.random.default_rng(step).normal())
        gradient[:frozen] = 0
        weight -= rate * (late if step >= 300 else 1) * gradient
    return curve(losses)


def curve(values, steps=None):
    return Curve("loss", np.arange(len(values)) if steps is None else np.array(steps), np.array(values, float))


GOLDEN = trained()


def test_a_long_run_in_another_order_is_silent():
    """Among many windows some would part by chance, if the limit were that of a few."""
    drawn = np.random.default_rng(7)
    for _ in range(2):
        a, b = (curve(2 + 0.3 * drawn.standard_t(6, size=60_000)) for _ in range(2))
        assert compare_curves(a, b).status == "close"


def test_the_first_steps_of_paired_runs_count_alone():
    shifted = curve(GOLDEN.values * np.where(np.arange(STEPS) < 10, 1.02 + 0.01 * (np.arange(STEPS) % 2), 1))
    found = compare_curves(shifted, GOLDEN)
    assert (found.status, found.first_step) == ("differs", 0) and "first 10 steps" in found.because


def test_a_repeated_golden_run_tells_what_noise_is():
    other = curve(GOLDEN.values * 1.05)
    assert compare_curves(other, GOLDEN).status == "differs"
    assert compare_curves(other, GOLDEN, curve(GOLDEN.values * 1.03)).status == "close"
