"""What in-place operators overwrite."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn, spelled

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
MEAN = normal(64)


def operand(op, read, wrote, **more):
    """The case of what an operator reads."""
    no_producer = more.pop("no_producer", False)
    made = case(op, [read], wrote, **more)
    return made.__class__(made.node.inputs[0], made.node, no_producer=no_producer)


class TestOverwritten(RuleContract):
    name = "overwritten"
    fires = {
        **spelled("add_", lambda op: operand(op, (noisy(Y, 1e-3), Y), (noisy(Y, 1e-3), Y))),
        "running statistics that a gradient reads": operand(
            "batch_norm", (MEAN, 0 * MEAN), (Y, Y), phase="backward", no_producer=True
        ),
    }
    silent = {
        "it was recorded before": operand("add_", (noisy(X, 1e-3), X), (noisy(Y, 1e-3), Y)),
        "not in place": operand("add", (noisy(Y, 1e-3), Y), (noisy(Y, 1e-3), Y)),
        "what was written for a gradient": operand("batch_norm", (MEAN, 2 * MEAN), (Y, Y), phase="backward"),
        "a matrix that a gradient reads": operand(
            "batch_norm", (noisy(X, 1e-3), X), (Y, Y), phase="backward", no_producer=True
        ),
        "a gradient": operand("add_", (noisy(Y, 1e-3), Y), (noisy(Y, 1e-3), Y), phase="backward"),
    }
