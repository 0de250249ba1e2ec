"""Notes on types and arguments that differ, and the parameters that optimizer calls update."""

from __future__ import annotations

import numpy as np

from npucmp.localise.notes import with_parameters
from npucmp.model import Finding
from tests.localise.networks import network, numbered, paired
from tests.localise.noted import root

# Parameters of optimizer calls

FORWARD = ["linear x w b -> y", "linear.backward@linear.0 g -> h d"]
WEIGHT, BIAS = "linear.0.forward input:1", "linear.0.forward input:2"
BIASES = {"b": np.float32([3.3, 0.7, 0.1, 0.9, 0.4])}


def step(*updates: str, slots: dict | None = None, **scope: object) -> list[Finding]:
    """The findings of a linear layer and of calls of an optimizer; slots of the tensors of the calls, by letter."""
    scope = scope or {"scope": "optimizer"}
    found = []
    for one in network(*FORWARD, *updates, **BIASES):
        if one.pair.order >= len(FORWARD):
            operator = one.pair.target_op._replace(**scope)
            one = paired(one, target_op=operator, golden_op=operator)
            one = paired(one, slot=(slots or {}).get(f"{one.pair.slot} {one.pair.golden.label}", one.pair.slot))
        found.append(one)
    return numbered(found)


def named(found: list[Finding], slot: str, order: int = len(FORWARD)) -> str | None:
    """The parameter that the evidence of a root in that slot names."""
    at = next(one for one in found if one.pair.order == order)
    before = root(paired(at, slot=slot), "other")
    (after,) = with_parameters(found, [before])
    if after is before:
        return None
    first, *others = after.evidence
    assert tuple(others) == before.evidence and first.kind == "parameter"
    return first.sentence().removeprefix(f"{slot} belongs to parameter ")


def test_roots_keep_their_order():
    found = step("add_ b g -> z", "add_ w g -> p", "tanh w -> q")
    plain = [
        one if one.pair.order != 4 else paired(one, target_op=one.pair.target_op._replace(scope="")) for one in found
    ]
    roots = [root(one) for one in reversed(plain) if one.pair.slot == "output:0"]
    after = with_parameters(plain, roots)
    assert [one.pair.order for one in after] == [4, 3, 2, 1, 0]
    assert [one.because for one in after] == ["", f"output:0 belongs to parameter {WEIGHT}",
                                              f"output:0 belongs to parameter {BIAS}", "", ""]  # fmt: skip
    assert with_parameters(plain, roots[:1] + roots[3:]) == tuple(roots[:1] + roots[3:])
    assert with_parameters(found, []) == ()


def test_a_parameter_of_the_target_alone_has_no_name():
    found = [paired(one, golden=None) if one.pair.slot == "input:1" and not one.pair.order else one
             for one in step("add_ w g -> z")]  # fmt: skip
    assert named(found, "output:0") is None
