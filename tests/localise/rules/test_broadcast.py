"""A mask that one implementation repeats over the batch has another shape there, and is the same mask."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import npucmp
from npucmp.flow.operators import OperatorFindings
from npucmp.localise.rule_context import RuleContext
from npucmp.model import Finding, Measurement, Moments, Operator, Pair, TensorRef, Verdict
from tests.localise.rules.craft import drawn, rule
from tests.synthetic import write_run

RULE = rule("broadcast")

normal, _ = drawn(__name__)
SCORES = [normal(2, 3, 4, 4).astype(np.float32) for _ in range(2)]
MASK = np.triu(np.full((4, 4), -1e4, np.float32), 1)
ADD, EXP = "Tensor.__add__.{}.forward".format, "Torch.exp.{}.forward".format


def run(shape, wrong=None, masks=(MASK, MASK)):
    """Two layers that mask scores; the scores of layer `wrong` are others than those that were written before."""
    records = {}
    for layer, (scores, mask) in enumerate(zip(SCORES, masks)):
        read = np.tanh(scores) * np.float32(2.0 if layer == wrong else 1.0)
        masked = read + mask
        records[f"Torch.tanh.{layer}.forward"] = {"in": [scores], "out": [np.tanh(scores)]}
        records[ADD(layer)] = {"in": [read, np.broadcast_to(mask, shape).copy()], "out": [masked]}
        records[EXP(layer)] = {"in": [masked], "out": [np.exp(masked)]}
    return records


def compared(tmp_path, target, golden, **options):
    return npucmp.compare(write_run(tmp_path / "t", target), write_run(tmp_path / "g", golden), **options)


def roots(report):
    return [
        (one.pair.operator.name, one.cause.value, one.slot) for one in report.roots if one.cause.value != "PROPAGATED"
    ]


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 3, 4, 4), (1, 4)], ids=str)
def test_a_mask_that_is_repeated_accuses_nothing(tmp_path, shape):
    mask = MASK[-1:] if shape == (1, 4) else MASK
    target, golden = run((4, 4), masks=(mask, mask)), run(shape, masks=(mask, mask))
    report = compared(tmp_path, target, golden)
    assert roots(report) == []
    assert report.exit_status == 2  # the golden's mask was not compared


def test_it_hides_no_fault_behind_it_and_is_none_beside_one(tmp_path):
    """The error of the second layer descends from no operand of the first, nor is its own mask another."""
    report = compared(tmp_path, run((4, 4), wrong=1), run((2, 1, 4, 4)))
    assert roots(report) == [(ADD(1), "GAP", "input:0")]


@pytest.mark.parametrize("layer", [0, 1])
def test_a_mask_of_other_values_is_still_found(tmp_path, layer):
    masks = [MASK, MASK]
    masks[layer] = np.triu(MASK, 2)
    report = compared(tmp_path, run((4, 4), masks=masks), run((2, 1, 4, 4)))
    assert roots(report)[0][0] == ADD(layer)
    assert report.exit_status == 1


def test_an_operand_that_does_not_broadcast_is_another(tmp_path):
    """Four rows against two are no repetition, whatever the output says."""
    target, golden = run((4, 4)), run((4, 4))
    target[ADD(0)]["in"][1] = MASK[:2]
    assert roots(compared(tmp_path, target, golden)) == [(ADD(0), "GAP", "input:1")]


def test_without_the_rule_the_mask_is_blamed(tmp_path):
    report = compared(tmp_path, run((4, 4)), run((2, 1, 4, 4)), skip_rules=["broadcast"])
    assert roots(report)[0] == (ADD(0), "GAP", "input:1")


def operand(target, golden, *outputs, slot="input:1", op="add", phase="forward", path="", verdict=Verdict.SHAPE):
    """An operand of these shapes, of an operator that writes outputs of (shape, shape, verdict, whether measured)."""
    refs = [TensorRef(slot, "float32", shape) for shape in (target, golden)]
    operators = [Operator(f"{op}.0", op, op, phase, 0, (ref,), path=path) for ref in refs]
    pair = Pair(0, slot, *operators, *refs, "name", 1.0)
    own = Finding(Measurement(pair, shapes_differ=True), verdict, "shape", inf)
    found = []
    for at, (one, other, agrees, measured) in enumerate(outputs):
        tensors = [TensorRef(f"output:{at}", "float32", shape) for shape in (one, other)]
        written = Pair(0, f"output:{at}", *operators, *tensors, "name", 1.0)
        found.append(Finding(Measurement(written, Moments() if measured else None), agrees, "", 0.0))
    return RuleContext(own, OperatorFindings(pair, [own], found))


AGREES = ((2, 3, 4), (2, 3, 4), Verdict.MATCH, True)


@pytest.mark.parametrize("target, golden, repeats", [
    ((3, 4), (2, 3, 4), True), ((2, 3, 4), (3, 4), True), ((1, 3, 4), (2, 1, 4), True), ((), (4,), True),
    ((1,), (2, 1, 1), True), ((3,), (2, 3, 4), False), ((2, 3, 4), (3,), False), ((2, 4), (4,), False),
    ((2, 2, 3, 4), (3, 4), False), ((1, 2, 3, 4), (3, 4), False), ((5, 4), (3, 4), False),
])  # fmt: skip
def test_both_sides_of_an_operand_broadcast_to_the_output(target, golden, repeats):
    assert RULE.applies(operand(target, golden, AGREES)) == repeats


REPEATED = (3, 4), (2, 3, 4)


@pytest.mark.parametrize("outputs, repeats", [
    ([AGREES], True), ([AGREES, AGREES], True), ([], False),
    ([AGREES, (*AGREES[:2], Verdict.DIVERGED, True)], False),
    ([(*AGREES[:2], Verdict.UNKNOWN, True)], False), ([(*AGREES[:2], Verdict.MATCH, False)], False),
    ([((2, 3, 4), (1, 2, 3, 4), Verdict.MATCH, True)], False),
    ([((6, 4), (6, 4), Verdict.MATCH, True)], False),
])  # fmt: skip
def test_each_output_agrees_in_its_values(outputs, repeats):
    assert RULE.applies(operand(*REPEATED, *outputs)) == repeats


@pytest.mark.parametrize("fields, repeats", [
    ({}, True), ({"slot": "input:0"}, True), ({"verdict": Verdict.DIVERGED}, False),
    ({"slot": "output:1"}, False),
    ({"slot": "param:weight"}, False), ({"op": "linear"}, False), ({"phase": "backward"}, False),
    ({"path": "Module.block"}, False),
])  # fmt: skip
def test_operands_of_the_forward_alone_are_repeated(fields, repeats):
    one = operand(*REPEATED, AGREES, **fields)
    assert RULE.applies(one) == repeats and not RULE.applies(RuleContext(one.finding))
