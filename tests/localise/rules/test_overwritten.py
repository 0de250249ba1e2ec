"""What in-place operators overwrite."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npucmp.localise.rule_context import RuleContext
from tests.localise.rules.craft import RuleContract, case, drawn, rule, spelled, without_values

RULE = rule("overwritten")

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
MEAN = normal(64)
COPIED = noisy(Y, 1e-3), Y


def operand(op, read, wrote, *others, **more):
    """The case of the last tensor that an operator reads."""
    no_producer = more.pop("no_producer", False)
    made = case(op, [*others, read], wrote, **more)
    return made.__class__(made.node.inputs[-1], made.node, no_producer=no_producer)


class TestOverwritten(RuleContract):
    name = "overwritten"
    fires = {
        **spelled("add_", lambda op: operand(op, (noisy(Y, 1e-3), Y), (noisy(Y, 1e-3), Y))),
        "the second operand": operand("add_", COPIED, COPIED, (X, X)),
        "the destination of a copy": operand("copy_", COPIED, COPIED),
        "a buffer": operand("copy_", (noisy(X, 1e-3), X), (Y, Y), no_producer=True),
        "running statistics that a gradient reads": operand(
            "batch_norm", (MEAN, 0 * MEAN), (Y, Y), phase="backward", no_producer=True
        ),
    }
    silent = {
        "it was recorded before": operand("add_", (noisy(X, 1e-3), X), (noisy(Y, 1e-3), Y)),
        "the source of a copy": operand("copy_", COPIED, COPIED, (X, X)),
        "the source of a copy, from nowhere": operand("copy_", COPIED, COPIED, (X, X), no_producer=True),
        "the values of an assignment": operand("__setitem__", COPIED, COPIED, (X, X), (MEAN, MEAN)),
        "not in place": operand("add", (noisy(Y, 1e-3), Y), (noisy(Y, 1e-3), Y)),
        "what was written for a gradient": operand("batch_norm", (MEAN, 2 * MEAN), (Y, Y), phase="backward"),
        "a matrix that a gradient reads": operand(
            "batch_norm", (noisy(X, 1e-3), X), (Y, Y), phase="backward", no_producer=True
        ),
        "a gradient": operand("add_", (noisy(Y, 1e-3), Y), (noisy(Y, 1e-3), Y), phase="backward"),
    }


@pytest.mark.parametrize("op, shape, no_producer, applies", [
    ("batch_norm", (64,), True, True), ("batch_norm", (64,), False, False),
    ("layer_norm", (64,), True, False),
    ("batch_norm", (8, 8), True, False), ("batch_norm", (4,), True, True), ("batch_norm", (3,), True, False),
    ("batch_norm", (), True, False),
])  # fmt: skip
def test_a_gradient_does_not_depend_on_running_statistics(op, shape, no_producer, applies):
    """They are vectors of four elements and more that no operator wrote."""
    values = normal(*shape)
    one = operand(op, (values, 2 * values), (Y, Y), phase="backward", no_producer=no_producer)
    assert RULE.applies(one) == applies


@pytest.mark.parametrize("op, slots", [("add_", (0,)), ("add", ()), ("batch_norm", (1, 2)), ("tanh", ())])
def test_checksums_of_overwritten_inputs_decide_nothing(op, slots):
    one = case(op, [(X, Y)] * 3, (X, Y))
    checked = [RuleContext(without_values(read, metric="checksum"), one.node) for read in one.node.inputs]
    assert [RULE.applies(each) for each in checked] == [at in slots for at in range(3)]
    assert not any(RULE.applies(replace(each, node=None)) for each in checked)


@pytest.mark.parametrize("op, slot, no_producer, applies", [
    ("copy_", 0, True, True), ("copy_", 0, False, False), ("copy_", 1, True, False), ("add_", 0, True, False),
    ("copy", 0, True, False), ("__setitem__", 0, True, True),
])  # fmt: skip
def test_memory_that_an_operator_only_writes_to_holds_any_values(op, slot, no_producer, applies):
    one = case(op, [(X, X + 1), (Y, 2 * Y)], (X, 3 * Y))
    assert RULE.applies(RuleContext(one.node.inputs[slot], one.node, no_producer=no_producer)) == applies


def test_an_input_with_the_content_of_an_output_was_recorded_afterwards():
    few = ([1.0, 2.0], [1.0, 2.0])  # simple numbers identify nothing
    for read, wrote, applies in (((X, Y), (X, Y), True), ((X, Y), (X, X), False), (few, few, False)):
        assert RULE.applies(operand("add_", read, wrote)) == applies
    first, second = (case("add_", [(X, Y)], (X, values)) for values in (X, Y))
    first.node.outputs += second.node.outputs
    assert RULE.applies(RuleContext(first.node.inputs[0], first.node))
