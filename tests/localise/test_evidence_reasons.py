"""The reasons of unknown causes, fused operators, gradual errors and patterns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.localise import evidence
from npucmp.localise.evidence import WorstInput
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict

OWN = "output:0: rel_l2 5.0e-01"  # the last words of most reasons


def found(slot="output:0", error=0.5, op="norm", order=3, **sides):
    """A finding of an operator; `sides` holds fields of the two tensors as (target, golden), None for no tensor."""
    made = Operator(f"{op}.{order}", op, op, "forward", order, ())
    tensors = [TensorRef(slot, "float32", (4,)), TensorRef(slot, "float32", (4,))]
    for at, fields in enumerate(sides.pop("tensors", ({}, {}))):
        tensors[at] = None if fields is None else tensors[at]._replace(**fields)
    pair = Pair(order, slot, made, made, *tensors)
    return Finding(Measurement(pair), Verdict.DIVERGED, f"rel_l2 {error:.1e}", error, **sides)


def words(reasons):
    return [one.sentence() for one in reasons]


SEVERAL = [found(f"input:{at}", order=9) for at in range(4)]
FORWARD = "tensors saved by the forward pass"


@pytest.mark.parametrize(
    "unread, left_out, recomputed, says",
    [
        ([], "", "", f"the {FORWARD} were not dumped"),
        (SEVERAL[:3], "", "", f"{FORWARD} could not be compared (norm.9 input:0, norm.9 input:1, norm.9 input:2)"),
        (SEVERAL, "f", "", f"{FORWARD} could not be compared (norm.9 input:0, norm.9 input:1, norm.9 input:2 …)"),
        ([], "f", "", "its forward pass was excluded by --include or --exclude (f)"),
        ([], "", "g", "its forward pass ran again as g, with other values that were not compared"),
        ([], "f", "g", "its forward pass ran again as g, with other values that were not compared"),
    ],
)
def test_saved_tensors_are_unknown_for_a_reason(unread, left_out, recomputed, says):
    got = evidence.unsaved_reasons(found(), unread, left_out, recomputed)
    assert words(got) == [OWN, says]
    assert [one.kind for one in got] == ["tensor", "unsaved"]


NEAR, OTHER = found("input:0", 1e-3), found("output:1", 1e-3, order=2)
EXPLAINED = "inputs differ, but their errors are explained"


@pytest.mark.parametrize(
    "worst, reads, says",
    [
        (WorstInput(), True, "inputs agree (bit for bit)"),
        (WorstInput(alike="the same values"), True, "inputs agree (the same values)"),
        (WorstInput(1e-3, NEAR), False, "the operator reads no tensor"),
        (WorstInput(1e-3, NEAR), True, "inputs agree (largest rel_l2 1.0e-03)"),
        (WorstInput(math.nextafter(1e-3, 1), NEAR), True, f"{EXPLAINED} (largest rel_l2 1.0e-03)"),
        (WorstInput(0.5, OTHER), True, f"{EXPLAINED} (largest rel_l2 5.0e-01, of norm.2 output:1)"),
        (WorstInput(0.0, NEAR), True, "inputs agree (bit for bit)"),
        (WorstInput(1e-3, NEAR, True), True, "inputs differ: input:0, rel_l2 1.0e-03"),
        (WorstInput(1e-3, NEAR, True, True), True, "a tensor of another rank differs: norm.3 input:0, rel_l2 1.0e-03"),
    ],
)
def test_inputs_agree_up_to_the_limit_of_the_operator(worst, reads, says):
    own = found(limit=1e-3)
    assert words(evidence.own_reasons(own.pair, own, worst, reads)) == [says, OWN]


def kernel(target, golden):
    return measure_block(target, golden, bars_for("float32", "float32", 0.0, 0.0))


KEPT = np.random.default_rng(4).standard_normal((2, 400)) * [[1.0], [3e-7]]
MASKS = np.random.default_rng(5).random((2, 400)) < 0.7


@pytest.mark.parametrize(
    "golden, target, says",
    [
        (1.0, 1.0, "drew another mask: 4"),  # the error of the inputs is large beside small elements
        (1.0, 1.4, "its kept elements differ"),
        (1.0, np.where(np.arange(400) % 9, 1.0, 1.01), "its kept elements differ"),
    ],
)
def test_kept_elements_differ_by_more_than_the_errors_of_small_ones(golden, target, says):
    x, y = (np.float32(mask * factor * value) for mask, factor, value in
            zip(MASKS, (target, golden), (KEPT.sum(0), KEPT[0])))  # fmt: skip
    one = found(op="dropout", limit=4.8e-7)
    one = one._replace(measurement=one.measurement._replace(moments=kernel(x, y)))
    assert says in words(evidence.draw_reasons(one, 3e-7))[0]
