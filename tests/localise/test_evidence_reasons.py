"""The reasons of unknown causes, fused operators, gradual errors and patterns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.localise import evidence
from npucmp.localise.evidence import WorstInput
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Cause, Finding, Measurement, Operator, Pair, TensorRef, Verdict

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


@pytest.mark.parametrize("reads", [False, True])
def test_tensors_of_other_ranks_may_be_all_that_is_unknown(reads):
    got = evidence.unheard_reasons(found(), reads)
    other = "tensors of other ranks were not compared: compare all ranks of the step"
    assert words(got) == [OWN, f"its own inputs agree; {other}" if reads else other]
    assert [one.kind for one in got] == ["tensor", "unheard"]


XOR = {"checksum": "0x1234abcd5678ef01"}
UNKNOWN = "the inputs were not dumped or cannot be compared"


@pytest.mark.parametrize(
    "unseen, says",
    [
        ([], UNKNOWN),
        ([found("input:1")], f"{UNKNOWN} (input:1)"),
        ([found("input:1", tensors=({"source": "relu:0"}, {"source": "tanh:0"}))], f"{UNKNOWN} (input:1 from relu:0)"),
        ([found("input:1", tensors=(None, {"source": "tanh:0"}))], f"{UNKNOWN} (input:1 from tanh:0)"),
        (SEVERAL, f"{UNKNOWN} (input:0, input:1, input:2 …)"),
        (
            [SEVERAL[0], found("input:1", tensors=(XOR, XOR))],
            "the inputs have equal XOR checksums, which prove nothing (input:0, input:1)",
        ),
    ],
)
def test_unknown_inputs_are_named_with_their_producers(unseen, says):
    got = evidence.unknown_reasons(found(), unseen)
    assert (words(got), got[-1].kind) == ([OWN, says], "unseen")


def test_a_weight_has_no_unknown_inputs():
    weight = Operator("model.norm.weight", "weight", "weight", "", 0, (), reads_recorded=False)
    own = found()
    own = own._replace(measurement=Measurement(own.pair._replace(target_op=weight, golden_op=weight)))
    assert words(evidence.unknown_reasons(own, SEVERAL)) == [OWN]


@pytest.mark.parametrize(
    "text, high, count",
    [("at most {high}", 1e-9, 1), ("at most {high}", 0.0, 0), ("at most {high}", math.inf, 0), ("", 1e-9, 0)],
)
def test_an_interval_is_evidence_if_its_end_is_a_known_error(text, high, count):
    assert words(evidence.interval_reasons(text, high)) == ["at most 1.0e-09"] * count


@pytest.mark.parametrize(
    "cause, kinds, fed",
    [(Cause.GAP, ["tensor", "fed"], True), (Cause.GAP, ["tensor"], False), (Cause.BORN, ["fed"], False)],
)
def test_an_input_of_the_network_is_a_gap_with_such_evidence(cause, kinds, fed):
    assert evidence.is_fed(cause, [evidence.reason(kind, "") for kind in kinds]) is fed


def test_errors_that_grow_name_the_steepest_operator_and_the_largest_error():
    got = evidence.gradual_reasons(found(), 7.25, 8.0, found("output:1", 2e-2, order=5))
    assert words(got) == [
        "no operator increases the error of its inputs more than 8 times, but errors grow to 2.0e-02 at norm.5 "
        "output:1",
        "this operator has the largest increase: 7.2 times",
        OWN,
    ]
    assert [one.kind for one in got] == ["gradual", "steepest", "tensor"]
    assert got[0].facts["error"] == (2e-2, "norm.5", "output:1")


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


@pytest.mark.parametrize("op, count", [("dropout", 2), ("norm", 0)])
def test_a_random_operator_has_a_remedy(op, count):
    got = words(evidence.draw_reasons(found(op=op)))
    assert [one.startswith(("a random operator", "fix the seed")) for one in got] == [True] * count


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


NOISE = np.random.default_rng(3).standard_normal(64).astype(np.float32)
ONE = np.array([2.25], np.float32)
ROWS = np.linspace(0.8, 1.2, 64, dtype=np.float32)
LONE = np.where(np.arange(64), NOISE * np.float32(1e-6), np.float32(100))


@pytest.mark.parametrize(
    "target, golden, says",
    [
        (NOISE * np.float32(1.5), NOISE, "the whole target is 1.5 times the golden"),
        (-NOISE, NOISE, "the whole target is -1 times the golden"),
        (NOISE / np.float32(3), NOISE, "the whole target is 0.333333 (1/3) times the golden"),
        (NOISE * np.float32(1 + 2.0**-13), NOISE, "the whole target is 1.00012 times the golden"),
        (NOISE * (1.5 * ROWS**0.1), NOISE, "a factor of about 1.49 explains 99 % of the difference"),
        (NOISE[::-1] * np.float32(1e-3), NOISE, ""),  # the difference is the golden itself
        (np.where(np.arange(64), NOISE, 3 * NOISE), NOISE, ""),
        (LONE * np.where(np.arange(64), 1, 1.01).astype(np.float32), LONE,
         "a factor of about 1.01 explains 99 % of the difference"),  # one element differs
        (np.where(np.arange(64), NOISE, np.inf), NOISE * np.float32(1 + 1e-7), ""),
        (np.where(np.arange(64), NOISE * np.float32(1.2), np.inf), NOISE,
         "the elements that are finite on both sides are 1.2 times the golden"),
        (ONE * np.float32(13 / 24), ONE, "the target is 0.541667 (13/24) times the golden: 1.21875 against 2.25"),
        (ONE * np.inf, ONE, ""),
        (NOISE, np.zeros(64, np.float32), ""),
    ],
)  # fmt: skip
def test_a_factor_stands_with_what_it_leaves(target, golden, says):
    moments = kernel(target.astype(np.float32), golden.astype(np.float32))
    own = found()._replace(measurement=Measurement(found().pair, moments))
    assert words(evidence.pattern_reasons(own)) == ([says] if says else [])


def test_the_first_of_two_values_that_are_rounded_is_named():
    pair, moments = found().pair, kernel(NOISE.astype(np.float16).astype(np.float32), NOISE)
    both = [found()._replace(measurement=Measurement(pair._replace(slot=f"output:{at}"), moments)) for at in (0, 1)]
    (got,) = evidence.type_reasons([], both)
    assert (got.kind, got.facts["slot"].value, got.facts["dtype"].slot) == ("type", "output:0", "output:0")
