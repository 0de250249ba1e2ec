"""A type that is coarser than the golden's, where hardly any other operator has one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npucmp.localise.rules.accusations import DOWNCAST_SHARE, downcast_share, is_rounded_once
from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule, without_values

RULE = rule("coarser")

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
OFF = (noisy(Y, 2e-3), Y, "bfloat16", "float32")


class TestCoarser(RuleContract):
    name = "coarser"
    fires = {
        "one operator of a hundred": case("softmax", [(X, X)], OFF, downcast_share=0.01),
        "behind a little noise": case("softmax", [(noisy(X, 1e-6), X)], OFF, downcast_share=0.05),
        "the golden alone casts its input up": case(
            "softmax", [(X, X, "bfloat16", "float32")], OFF, downcast_share=0.01
        ),
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
        "a gradient that arrives": case(
            "softmax", [], OFF, slot="input:0", node=False, no_producer=True, phase="backward", downcast_share=0.0
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


def typed(read, wrote, saved=(), **more):
    """An operator with one tensor of each pair of types that it reads, writes, and reads as a gradient; what is coarser
    is rounded."""
    tensors = [
        [(ones(4)[0] * (1.0 + 2.0**-7 * (types == COARSER)), ones(4)[1], *types) for types in some]
        for some in (read, wrote, saved)
    ]
    kept = [(f"output:{at}", one) for at, one in enumerate(tensors[2])]
    return case(more.pop("op", "tanh"), tensors[0], tensors[1][0], kept, round_off=2.0**-24, **more).node


SAME, COARSER, FINER = ("float32", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")
PLAIN, BEGINS, BEHIND = typed([SAME], [SAME]), typed([SAME], [COARSER]), typed([COARSER], [COARSER])


@pytest.mark.parametrize("nodes, share", [
    ([], 0.0), ([PLAIN], 1.0), ([BEGINS], 1.0), ([BEGINS, PLAIN], 0.0), ([BEGINS, BEGINS], 1.0),
    ([BEGINS] * 2 + [PLAIN] * 7, 1 / 9), ([BEGINS] * 2 + [PLAIN] * 6, 1.0),
    ([BEGINS] * 3 + [PLAIN] * 10, 2 / 13),
    ([BEGINS] * 3 + [PLAIN] * 9, 1.0), ([BEGINS, BEHIND] + [PLAIN] * 8, 0.0), ([BEHIND] + [PLAIN] * 8, 0.0),
    ([typed([SAME], [COARSER], [COARSER], phase="backward"), BEGINS] + [PLAIN] * 8, 0.0),
    ([typed([SAME], [COARSER], [SAME], phase="backward"), BEGINS] + [PLAIN] * 8, 1 / 10),
    ([typed([], [COARSER]), BEGINS] + [PLAIN] * 8, 1 / 10),
    ([typed([SAME], [types]) for types in (FINER, ("int32", "float32"), ("float32", "int32"))] + [PLAIN, BEGINS], 0.0),
    ([typed([SAME], [types]) for types in (("strange", "float32"), ("float32", "strange"))] + [PLAIN, BEGINS], 0.0),
])  # fmt: skip
def test_a_quarter_of_the_operators_in_a_coarser_type_is_a_whole_run(nodes, share):
    """Fewer count if they begin it: they write it and read none of it. The tensor by itself does not count."""
    assert downcast_share(nodes) == share


def test_modules_count_if_there_are_no_other_operators():
    module = typed([SAME], [COARSER], path="Module.block")
    assert downcast_share([module, BEGINS, *[PLAIN] * 8]) == 0.0
    assert downcast_share([module, BEGINS, BEGINS, *[PLAIN] * 7]) == 1 / 9
    assert downcast_share([module, module, *[typed([SAME], [SAME], path="Module.act")] * 8]) == 1 / 10


def test_an_assumed_input_is_read():
    node = typed([], [COARSER])
    node.assumed_inputs = BEHIND.inputs
    assert downcast_share([node, BEGINS, *[PLAIN] * 8]) == 0.0


def test_inputs_alone_count_by_their_contents():
    nodes = [
        PLAIN,
        *(case("exp", [(value * X, value * X, *COARSER)], (Y, Y)).node for value in (1, 2, 2)),
        *[PLAIN] * 12,
    ]
    nodes = [replace(node, outputs=[]) for node in nodes]
    assert downcast_share(nodes) == 1 / 16
    nodes[5] = replace(PLAIN)
    assert downcast_share(nodes) == 0.0


def accused(error=0.01, share=0.05, op="tanh", read=((X, X),), types=COARSER, **more):
    return RULE.applies(case(op, list(read), ((1 + error) * Y, Y, *types), downcast_share=share, **more))


@pytest.mark.parametrize("share, error, is_one", [
    (0.05, 0.01, True), (0.051, 0.01, False), (0.0, 1.01 * 2.0**-24, True), (0.0, 0.99 * 2.0**-24, False),
    (0.0, 0.0, False),
])  # fmt: skip
def test_one_of_twenty_may_be_an_accident_that_shows(share, error, is_one):
    """The error exceeds what rounding to the golden's type makes."""
    assert accused(error, share) == is_one
    assert not accused(error, share, types=SAME)


def test_the_first_reader_bears_the_error_of_a_tensor_that_no_operator_wrote():
    alone = {"read": (), "node": False}
    assert accused(no_producer=True, **alone) and not accused(**alone)
    assert not accused(read=(), no_producer=True)
    unmeasured = case("tanh", [(X, X)], (1.01 * Y, Y, *COARSER), downcast_share=0.0)
    assert RULE.applies(unmeasured)
    assert not RULE.applies(replace(unmeasured, finding=unmeasured.finding._replace(error=None)))


ROUNDING = 2.0**-8 + 2.0**-24


@pytest.mark.parametrize("op, is_cast", [("cast", True), ("to", True), ("clone", False), ("tanh", False)])
@pytest.mark.parametrize("error, read, once", [
    (0.0, 0.0, True), (0.999 * ROUNDING * (1 + ROUNDING), 0.0, True),
    (1.001 * ROUNDING * (1 + ROUNDING), 0.0, False),
    (0.999 * (ROUNDING + 0.01) * (1 + ROUNDING), 0.01, True),
    (1.001 * (ROUNDING + 0.01) * (1 + ROUNDING), 0.01, False),
])  # fmt: skip
def test_a_cast_may_round_each_element_once(op, is_cast, error, read, once):
    """One element is off; relative errors of both types and of the input combine."""
    one = case(op, [ones(99, read), (*ones(2), "int64")], (*ones(99, error), *COARSER), input_error=read)
    assert is_rounded_once(one) == (is_cast and once)
    assert not is_rounded_once(replace(one, node=None))
    if op == "cast" and error:
        assert RULE.applies(replace(one, downcast_share=0.0)) == (not once)


@pytest.mark.parametrize("error, once", [(0.0149, True), (0.0151, False)])
def test_a_cast_without_inputs_has_the_error_that_came_in(error, once):
    one = case("cast", [], (*ones(9, error), *COARSER), input_error=0.0149 / (1 + ROUNDING) - ROUNDING)
    assert is_rounded_once(one) == once


def test_a_cast_of_statistics_rounds_once_if_its_proven_error_allows_it():
    one = case("cast", [(X, X)], (1.5 * Y, Y, *COARSER))
    for error, once in ((0.003, True), (0.005, False), (np.nan, False)):
        known = replace(one, finding=without_values(one.finding, error=error))
        assert is_rounded_once(known) == once
    holed = np.where(np.arange(Y.size).reshape(Y.shape) == 7, np.nan, Y)
    assert not is_rounded_once(case("cast", [(X, X)], (holed, Y, *COARSER)))


def test_a_tensor_of_one_side_and_types_of_one_precision_are_not_coarser():
    for side in ("target", "golden"):
        node = typed([SAME], [COARSER])
        pair = node.outputs[0].pair._replace(**{side: None})
        node.outputs = [node.outputs[0]._replace(measurement=node.outputs[0].measurement._replace(pair=pair))]
        assert downcast_share([node, BEGINS, *[PLAIN] * 8]) == 0.0
    alike = typed([SAME], [("hifloat8", "float8_e5m2")])
    assert downcast_share([alike, BEGINS, *[PLAIN] * 8]) == 0.0


def test_one_reader_may_have_several_inputs_of_a_coarser_type():
    node = case("add", [(X, X, *COARSER), (2 * X, 2 * X, *COARSER)], (Y, Y)).node
    node.outputs = []
    assert downcast_share([node]) == 1.0


@pytest.mark.parametrize("error, is_one", [(2.0**-24, False), (2.0**-23, True)])
def test_one_rounding_of_the_golden_is_no_error(error, is_one):
    one = case("tanh", [ones(9)], (*ones(64, *[error] * 64), *COARSER), downcast_share=0.0)
    assert one.error == error and RULE.applies(one) == is_one
