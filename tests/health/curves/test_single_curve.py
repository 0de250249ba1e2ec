"""What of a training can be seen in one curve: a table of what must speak and what must not."""

import math

import numpy as np
import pytest

from npucmp.health.curves import single_curve
from npucmp.health.curves.curve import Curve

drawn = np.random.default_rng(1)
FALLING = 2.3 * np.exp(-np.arange(600) / 200) * (1 + 0.2 * drawn.normal(size=600)) + 0.1
NOISE = 2.3 * (1 + 0.2 * drawn.normal(size=600))


def curve(values, name="loss", every=1):
    return Curve(name, np.arange(0, len(values) * every, every), np.array(values, float))


def spiked(*steps, size=5.0):
    values = FALLING.copy()
    values[list(steps)] *= size
    return values


MUST = {
    "nonfinite": ([1, 2, math.nan], [*FALLING, math.inf], [math.nan] * 3),
    "flat": ([2.302585] * 20, [0.0] * 10),
    "spiking": (spiked(200), spiked(60, 400, size=8)),
    "rising": (2 + np.arange(600) / 300 + NOISE / 10, FALLING[::-1]),
}
MUST_NOT = {
    "nonfinite": (FALLING, []),
    "flat": (FALLING, NOISE, [2.3] * 9, np.linspace(2, 1, 50)),
    "spiking": (FALLING, NOISE, [1.0] * 50, np.linspace(0, 1, 100), [1.0] * 20, spiked(10)),
    "rising": (FALLING, NOISE, [2.3] * 600, [1, 2, 3], 2.3 + np.arange(600) / 60_000),
}


@pytest.mark.parametrize("name", MUST)
def test_must_speak(name):
    for values in MUST[name]:
        assert getattr(single_curve, name)(curve(values)), values


@pytest.mark.parametrize("name", MUST_NOT)
def test_must_not(name):
    for values in MUST_NOT[name]:
        assert getattr(single_curve, name)(curve(values)) is None, values


def test_words_hold_the_steps():
    assert single_curve.nonfinite(curve([1, math.nan, 2])).because == "loss is nan from step 1 on, at 1 of 3 steps"
    assert single_curve.nonfinite(curve([1, math.inf])).because == "loss is inf from step 1 on, to the end"
    assert "random guessing" in single_curve.flat(curve([math.log(10)] * 20), (math.log(10),)).because
    assert single_curve.spiking(curve(spiked(200, 400))).because.endswith("at step 200 and at 1 more")


APART = [1.0, 1.2, 1.2, 1.2]


@pytest.mark.parametrize("values, speaks", [(APART, True), (APART[:3], False), ([1.2, 1.2, 1.2, 1.05], False)])
def test_validation_apart(values, speaks):
    """Of the training loss of 1 since the evaluation before; three times, to the end."""
    found = single_curve.diverging_validation(curve([5.0] + [1.0] * 400), curve(values, "eval_loss", every=100))
    assert bool(found) is speaks
    assert not found or (found.step, found.value) == (100, pytest.approx(0.2))


UP_AND_DOWN = [2.0**n for n in (16, 16, 17, 17, 16, 16, 17, 17, 18, 17, 17, 18, 18, 17)]


@pytest.mark.parametrize(
    "scales, steps",
    [
        (UP_AND_DOWN, []),
        ([2.0**n for n in (32, 30, 28, 26)] + [2.0**16] * 60, []),
        ([2.0**16] * 20 + [2.0**15] * 5 + [2.0**14] * 5, [25]),
        ([2.0**n for n in (2, 1, 1, 0)], [3]),
        ([1.0] * 20, []),
    ],
    ids=["up and down", "the search at the start", "twice without a rise", "to 1", "1 throughout"],
)
def test_falls_of_a_loss_scale(scales, steps):
    found = single_curve.falls(curve(scales, "loss scale"))
    assert [one.step for one in found] == steps
