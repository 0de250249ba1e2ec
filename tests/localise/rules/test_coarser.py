"""A type that is coarser than the golden's, where hardly any other operator has one."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
OFF = (noisy(Y, 2e-3), Y, "bfloat16", "float32")


class TestCoarser(RuleContract):
    name = "coarser"
    fires = {
        "one operator of a hundred": case("softmax", [(X, X)], OFF, habit=0.01),
        "behind a little noise": case("softmax", [(noisy(X, 1e-6), X)], OFF, habit=0.05),
    }
    silent = {
        "a run in mixed precision": case("linear", [(X, X)], OFF, habit=0.3),
        "it reads what is coarser already": case(
            "softmax", [(noisy(X, 2e-3), X, "bfloat16", "float32")], OFF, habit=0.01
        ),
        "finer": case("softmax", [(X, X)], (noisy(Y, 2e-3), Y, "float32", "bfloat16"), habit=0.01),
        "the golden's own rounding": case("softmax", [(X, X)], (Y, Y, "bfloat16", "float32"), habit=0.01),
    }
