"""A parameter of a later step contains the result of earlier updates: the noise of its gradient, propagated.

Evidence: parameters of later steps of silent clean pairs of the corpus (open seeds); the formulas are in
localise/parameter_drift.py. A parameter whose gradient is pure noise (a key's bias, a bias before a normalisation)
drifts by as much as the golden's own step.

The bound is 2 times the error of the step before, plus 0.5 √e_g for the error e_g of the gradient in the step before,
the largest of its shape that the backward wrote, in any call that reads the parameter. An update makes at least one
round-off. If e_g reaches 1, 8 steps of the optimizer replace 0.5 √e_g. A step is that of the golden's parameter, by its
minimum, maximum, norm and sum in both steps, and at least the median step of all parameters. If statistics give only a
lower bound, e_g is at least the 90 % quantile of that step. The gradient of a bias that was not recorded may be noise:
e_g is 1. Any other gradient that was not recorded has at least one round-off of the coarsest type that a tenth of the
float tensors have, unless nothing differed at all. One element of a parameter may move by two steps if 16 e_g K is 0.1
or more, for K elements. A parameter that is scaled as a whole has the bound of the 90 % quantile.
"""

from __future__ import annotations

from npucmp.localise.parameter_drift import ERROR_GROWTH, UPDATE, UPDATE_FACTOR
from npucmp.localise.rule_context import ErrorRule

RULE = ErrorRule(
    "explanation",
    "inherited",
    f"the error of a parameter may grow {ERROR_GROWTH:g} times in each step, plus {UPDATE:g} √e if its gradient had "
    f"the error e; if the gradient is only noise, plus {UPDATE_FACTOR:g} optimizer steps instead",
    applies=lambda case: case.node is None and case.inherited > 0,
    bound=lambda case: case.inherited,
)
