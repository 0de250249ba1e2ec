"""Two curves: a small regression is trained with its batches in one order and in another, well and with a fault."""

import math

import numpy as np
import pytest

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
SILENT = {
    "the same": (GOLDEN, GOLDEN),
    "rounding": (trained(noise=1e-4), GOLDEN),
    "a learning rate 0.1 % higher": (trained(rate=0.02 * 1.001), GOLDEN),
    **{f"another order, {n}": (trained(order=n), GOLDEN) for n in range(1, 10)},
    "a constant": (curve([1.0] * 20), curve([1.0] * 20)),
    "both not finite": (curve([*GOLDEN.values[:20], math.nan]), curve([*GOLDEN.values[:20], math.inf])),
}
PARTS = {
    "learning rate × 1.5": trained(rate=0.03),
    "learning rate × 0.5": trained(rate=0.01),
    "an order of its own, and a frozen part": trained(order=2, frozen=1),
    "another order, and a tenth of the learning rate": trained(order=3, rate=0.002),
    "a curve that ran away": curve([*GOLDEN.values[:400], *(10.0**200 for _ in range(200))]),
}


@pytest.mark.parametrize("name", SILENT)
def test_must_be_silent(name):
    found = compare_curves(*SILENT[name])
    assert found.status == ("same" if name in ("the same", "a constant") else "close"), found.because
    assert found.first_step is None and not any(one.differs for one in found.windows)


@pytest.mark.parametrize("name", PARTS)
def test_must_part(name):
    found = compare_curves(PARTS[name], GOLDEN)
    assert found.status == "differs" and "windows differ" in found.because
    assert found.paired is ("order" not in name)
    assert found.mean > 0.02


def test_the_vendor_s_rule_cries_where_this_one_is_silent():
    """Single steps of runs in another order differ by far more than 1 %."""
    assert all(compare_curves(*SILENT[f"another order, {n}"]).mean > 0.15 for n in range(1, 10))


def test_where_paired_runs_part():
    found = compare_curves(trained(late=3.0), GOLDEN)
    assert found.status == "differs" and 300 <= found.first_step <= 310
    assert all(one.step_from >= 300 for one in found.windows if one.differs)


def test_where_a_window_parts_is_told_of_other_orders():
    other = curve(np.where(np.arange(STEPS) < 400, 1, 3) * trained(order=4).values)
    found = compare_curves(other, GOLDEN)
    assert found.paired is False and found.first_step == 400


def test_the_figures_of_a_window_are_those_of_plain_arithmetic():
    x, y = trained(order=5).values[:50], GOLDEN.values[:50]
    one = compare_curves(trained(order=5), GOLDEN).windows[0]

    def scatter(values):
        a, b = np.linalg.lstsq(np.stack([np.ones(50), np.arange(50)], 1), values, rcond=None)[0]
        return sum((v - a - b * n) ** 2 for n, v in enumerate(values)) / 48

    mean = sum(y) / 50
    assert (one.step_from, one.step_to) == (0, 49)
    assert one.relative == pytest.approx((sum(x) / 50 - mean) / mean, rel=1e-9)
    assert one.error >= math.sqrt((scatter(x) + scatter(y)) / 50) / mean * (1 - 1e-9)


def test_windows_cover_every_step():
    for steps in (10, 57, 119, 599, 1234):
        windows = compare_curves(curve(range(steps)), curve(range(steps))).windows
        assert windows[0].step_from == 0 and windows[-1].step_to == steps - 1
        assert all(a.step_to + 1 == b.step_from for a, b in zip(windows, windows[1:]))


def test_a_smoothed_curve_in_another_order_is_silent():
    """What is averaged along the way knows itself from step to step, and scatters less than it is uncertain."""
    for n in range(1, 6):
        smooth = [curve(np.convolve(trained(order=k).values, np.full(9, 1 / 9), "valid")) for k in (n, n + 20)]
        assert compare_curves(*smooth).status == "close"


def test_a_long_run_in_another_order_is_silent():
    """Among many windows some would part by chance, if the limit were that of a few."""
    drawn = np.random.default_rng(7)
    for _ in range(2):
        a, b = (curve(2 + 0.3 * drawn.standard_t(6, size=60_000)) for _ in range(2))
        assert compare_curves(a, b).status == "close"


@pytest.mark.parametrize("side", [0, 1])
def test_not_finite_on_one_side(side):
    odd = curve(np.where(np.arange(STEPS) >= 123, np.nan, GOLDEN.values))
    found = compare_curves(*([odd, GOLDEN] if side == 0 else [GOLDEN, odd]))
    assert (found.status, found.first_step) == ("differs", 123)
    assert found.because.startswith(f"the {('target', 'golden')[side]} is not finite at step 123")
    assert len(found.nonfinite[side]) == STEPS - 123 and not found.nonfinite[1 - side]


def test_too_few_common_steps():
    found = compare_curves(curve(range(20)), curve(range(20), range(11, 31)))
    assert (found.status, found.common) == ("unknown", 9) and "9 common steps" in found.because


def test_nothing_is_the_same_where_nothing_is_finite():
    found = compare_curves(curve([math.nan] * 20), curve([math.nan] * 20))
    assert found.status == "unknown" and "0 of them finite" in found.because


def test_only_common_steps_count():
    other = curve(np.repeat(GOLDEN.values, 2), range(0, 2 * STEPS))
    assert compare_curves(curve(other.values[::2], range(0, 2 * STEPS, 2)), other).status == "same"


def test_the_first_steps_of_paired_runs_count_alone():
    shifted = curve(GOLDEN.values * np.where(np.arange(STEPS) < 10, 1.02 + 0.01 * (np.arange(STEPS) % 2), 1))
    found = compare_curves(shifted, GOLDEN)
    assert (found.status, found.first_step) == ("differs", 0) and "first 10 steps" in found.because


def test_a_repeated_golden_run_tells_what_noise_is():
    other = curve(GOLDEN.values * 1.05)
    assert compare_curves(other, GOLDEN).status == "differs"
    assert compare_curves(other, GOLDEN, curve(GOLDEN.values * 1.03)).status == "close"


def test_spikes_of_both_sides():
    spiky = GOLDEN.values.copy()
    spiky[[100, 333]] = 500
    found = compare_curves(curve(spiky), GOLDEN)
    assert {100, 333} <= {*found.spikes[0]} and {*found.spikes[0]} - {*found.spikes[1]} == {100, 333}
