"""Errors that grow step by step to something hopeless."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn

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
