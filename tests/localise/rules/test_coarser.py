"""A type that is coarser than the golden's, where hardly any other operator has one."""

from __future__ import annotations

import pytest

from npucmp.localise.rules.coarser import DOWNCAST_SHARE, downcast_share
from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
OFF = (noisy(Y, 2e-3), Y, "bfloat16", "float32")


class TestCoarser(RuleContract):
    name = "coarser"
    fires = {
        "one operator of a hundred": case("softmax", [(X, X)], OFF, downcast_share=0.01),
        "behind a little noise": case("softmax", [(noisy(X, 1e-6), X)], OFF, downcast_share=0.05),
        "only inputs were recorded": case(
            "softmax", [], OFF, slot="input:0", node=False, no_producer=True, downcast_share=0.0
        ),
    }
    silent = {
        "a run in mixed precision": case("linear", [(X, X)], OFF, downcast_share=0.3),
        "it reads what is coarser already": case(
            "softmax", [(noisy(X, 2e-3), X, "bfloat16", "float32")], OFF, downcast_share=0.01
        ),
        "its forward did so already": case(
            "softmax",
            [(X, X)],
            OFF,
            [("output:0", (noisy(X, 2e-3), X, "bfloat16", "float32"))],
            phase="backward",
            downcast_share=0.01,
        ),
        "finer": case("softmax", [(X, X)], (noisy(Y, 2e-2), Y, "float32", "bfloat16"), downcast_share=0.01),
        "whole numbers": case("softmax", [(X, X)], (noisy(Y, 2e-2), Y, "int32", "float32"), downcast_share=0.01),
        "the golden's own rounding": case("softmax", [(X, X)], (Y, Y, "bfloat16", "float32"), downcast_share=0.01),
    }


def run(coarse, many=12):
    """Operators that read and write float32, but those that turn to bfloat16 for what they write."""
    return [case("tanh", [(X, X)], OFF if place in coarse else (Y, Y)).node for place in range(many)]


@pytest.mark.parametrize("coarse, alone", [({3}, True), ({3, 7}, False), (range(0, 12, 2), False), (range(12), False)])
def test_one_operator_makes_no_habit(coarse, alone):
    assert (downcast_share(run(coarse)) <= DOWNCAST_SHARE) == alone


def test_what_only_reads_a_coarser_type_does_not_count():
    behind = [case("tanh", [OFF], (Y, Y)).node, case("exp", [OFF], OFF).node]
    assert downcast_share([*run({3}), *behind]) == 0.0


def test_of_inputs_alone_each_tensor_counts_once():
    nodes = run((), 9)
    for node in nodes:
        node.outputs.clear()
    reader = case("exp", [OFF], (Y, Y)).node
    reader.outputs.clear()
    assert downcast_share([*nodes, reader, reader]) == 0.0
