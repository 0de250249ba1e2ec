"""Errors that grow step by step to something hopeless."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npucmp.localise.rules.accusations import is_step
from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule

RULE = rule("gradual")

normal, noisy = drawn(__name__)

Y = normal(64, 64)


def grown(error, before, **more):
    return case("tanh", [(Y, Y)], (noisy(Y, error), Y), input_error=before, **{"grew_stepwise": True, **more})


class TestGradual(RuleContract):
    name = "gradual"
    fires = {"5 % in float32": grown(0.05, 0.012)}
    silent = {
        "not hopeless yet": grown(0.01, 0.003),
        "it was before": grown(0.05, 0.04),
        "at once": grown(0.05, 0.001),
        "nobody looked at how": grown(0.05, 0.012, grew_stepwise=False),
    }


def step(error, came, working=0.0, **more):
    one = case("tanh", [ones(9)], ones(64, *[error] * 64), input_error=came, grew_stepwise=True, **more)
    return replace(one, finding=one.finding._replace(working=working))


BAR = 2.0**-6  # 64 √u of float32


@pytest.mark.parametrize("error, came, is_one, applies", [
    (0.125, BAR, True, True), (0.126, BAR, False, False), (0.1, 1.01 * BAR, False, False),
    (0.0, 0.0, False, False),
    (BAR, BAR / 8, True, False), (1.01 * BAR, BAR / 4, True, True), (BAR / 2, BAR, True, False),
])  # fmt: skip
def test_a_step_grows_by_eight_at_most_from_what_was_harmless(error, came, is_one, applies):
    one = step(error, came)
    assert is_step(one) == is_one and RULE.applies(one) == applies
    assert not RULE.applies(replace(one, grew_stepwise=False))


@pytest.mark.parametrize("working, round_off, bar", [
    (2.0**-20, None, 2.0**-4), (2.0**-30, None, BAR), (0.0, 2.0**-22, 2.0**-5), (2.0**-26, 2.0**-22, 2.0**-5),
])  # fmt: skip
def test_what_is_harmless_depends_on_the_coarsest_precision(working, round_off, bar):
    assert RULE.applies(step(1.01 * bar, bar, working, round_off=round_off))
    assert not RULE.applies(step(0.99 * bar, bar / 2, working, round_off=round_off))
    assert not RULE.applies(step(1.5 * bar, 1.01 * bar, working, round_off=round_off))
