"""How far an input of an operator may shift before it exceeds the noise before it, in recorded statistics."""

import math

import pytest

from npucmp.model import Statistics
from tests.localise.stat_craft import HALF, SINGLE, Op, of, outlier, row

MAX, NORM, MEAN = 0, 3, 2
ALL, SUMS, LATER = 5.0, 3.5, 8.0  # times the noise before: of all figures, of mean and norm, in later steps
A = row("input:0", golden=of(5.0))
MIXED = ("float32", "bfloat16")
IN_SINGLES = HALF / SINGLE  # roundings of float32 in one of bfloat16


def read(at, size, asked):
    """The same tensor with a figure that shifted."""
    return asked._replace(shifts=tuple(size if at == one else 0.0 for one in range(4)))


def assert_bar_of_input(bar, at, asked, before=(), behind=(), op="mul", phase="forward", few=16, **more):
    """The smallest shift of an input, in roundings, with which the operator exceeds the noise before it; None if no
    shift is enough."""
    bar, found = bar and bar * (1 + few / math.prod(asked.shape)), []
    for size in (0.999 * bar, 1.001 * bar) if bar else (1e4,):
        one = Op(op, (read(at, size, asked), *behind), phase)
        found.append(outlier(*before, one, **more) is not None)
    assert found == ([False, True] if bar else [False])


NUMBER = row("input:0", golden=Statistics(2.0, 2.0, 2.0, 2.0), shape=())
THREE = row("input:0", golden=of(2.0, 1.8), shape=(3,))
FOUR = row("input:0", golden=of(2.0, 2.1), shape=(4,))
OUT = row("output:0")
LINEAR = {"op": "linear", "behind": (OUT,)}
WEIGHT = A._replace(slot="input:1")
MOVED = {"now": {"moved": True, "seen": 1}}
NOISY = {"now": {"moved": True, "seen": 1, "levels": 10 * HALF}}
LATEST = {"now": {"moved": True, "seen": 1, "levels": 10 * HALF, "last": 15 * HALF}}


@pytest.mark.parametrize(
    ("bar", "at", "asked", "more"),
    [
        # inputs of the network in 16 bits should be equal
        (0.5 * ALL, MAX, A, {}),
        (0.5 * SUMS, NORM, A, {}),
        (2 * ALL, MAX, A, {"now": {"seen": 1}}),
        (2 * ALL, MAX, A._replace(dtype="float32"), {}),
        (2 / IN_SINGLES * ALL, MAX, A._replace(dtype=MIXED), {"behind": (OUT._replace(dtype="float32"),)}),
        (2 * ALL, MAX, A._replace(dtype=MIXED), {"facts": {"apart": True}}),
        (0.5 * ALL, MAX, NUMBER, {"few": 0}),  # figures of a number average nothing
        (0.5 * ALL, MAX, THREE, {"few": 0}),
        (0.5 * ALL, MAX, FOUR, {}),
        # parameters
        (0.5 * ALL, MAX, WEIGHT, LINEAR),
        (2 * ALL, MAX, WEIGHT, {**LINEAR, **NOISY}),
        (None, MAX, WEIGHT, {**LINEAR, "facts": {"first": False}}),
        (0.5 * LATER, MAX, A, {"facts": {"first": False}}),
        (2 * ALL, MAX, WEIGHT, {**LINEAR, **LATEST}),
        # behind other noise
        (4 * 2 * ALL, MAX, A, MOVED),
        (4 * 0.5 * SUMS, NORM, A, {"now": {"moved": True}}),
        (4 * 10 * ALL, MAX, A, NOISY),
        (4 * 10 * SUMS, MEAN, A, NOISY),
        (4 * 15 * ALL, MAX, A, LATEST),
        (4 * 10 * ALL, MAX, FOUR, {**NOISY, "phase": "backward"}),
        (None, MAX, NUMBER, MOVED),  # it may be left of a sum that cancels
        (4 * 2 * ALL, MAX, NUMBER, {**MOVED, "phase": "backward", "few": 0}),
        (4 * 10 * ALL, MAX, NUMBER, {**LATEST, "phase": "backward", "few": 0}),
        (None, MAX, A, {"op": "add_"}),  # it writes to its input
        (0.5 * ALL, MAX, A, {"op": "add"}),
    ],
)
def test_an_input_that_no_operator_wrote_exceeds_the_noise_before_it(bar, at, asked, more):
    assert_bar_of_input(bar, at, asked, **more)


GRADIENT = Op("mul", (row("input:0", golden=of(9.0)), row("output:0", golden=of(8.0))), "backward")
WRITTEN = row("output:0", golden=of(7.0))
READ = WRITTEN._replace(slot="input:0")
TINY = row("input:0", golden=of(0.01, 0.08), shape=(64,), judged={"working": HALF})


@pytest.mark.parametrize(
    ("bar", "at", "asked", "wrote", "more"),
    [
        # the producer's shift
        (2 * ALL, MAX, READ, Op("mul", (WRITTEN,)), {}),
        (2 * SUMS, NORM, READ, Op("mul", (WRITTEN,)), {}),
        (5 * ALL, MAX, READ, Op("mul", (read(NORM, 5, WRITTEN),)), {}),
        (5 * ALL, MAX, READ, Op("mul", (read(MAX, 5, WRITTEN),)), {}),
        (2 * ALL, MAX, READ, Op("mul", (WRITTEN,)), NOISY),
        (2 * IN_SINGLES * ALL, MAX, READ._replace(dtype="float32"), Op("mul", (WRITTEN,)), {}),
        (None, MAX, READ, Op("empty", (WRITTEN,)), {}),
        (None, MAX, READ, Op("mul", (WRITTEN._replace(known={"statistics": (None, WRITTEN.golden)}),)), {}),
        # a number that is smaller than the latest gradients may be left of a sum that cancels
        (None, MAX, NUMBER, GRADIENT, {**MOVED, "phase": "backward"}),
        (0.5 * ALL, MAX, NUMBER, GRADIENT, {"phase": "backward", "few": 0}),
        # a gradient of a bias that is smaller than the rounding of the latest outputs
        (None, MAX, TINY, GRADIENT, {"phase": "backward"}),
        (None, MAX, TINY, GRADIENT, {}),  # the optimizer reads it
    ],
)
def test_an_input_exceeds_the_noise_of_the_operators_before_it(bar, at, asked, wrote, more):
    assert_bar_of_input(bar, at, asked, before=(wrote,), **more)
