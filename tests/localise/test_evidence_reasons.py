"""The reasons of unknown causes, fused operators, gradual errors and patterns."""

from __future__ import annotations

import math

import pytest

from npucmp.localise import evidence
from npucmp.localise.evidence import WorstInput
from npucmp.model import Cause, Finding, Measurement, Moments, Operator, Pair, TensorRef, Verdict

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


@pytest.mark.parametrize(
    "compared, xy, sum_dd, says",
    [
        (2, 1.5, 0.25, ["1.5"]),
        (2, 1.5, 0.25 / 0.89**2, []),  # the factor is less than nine tenths of the error
        (2, 1.5, 0.25 / 0.91**2, ["1.5"]),
        (1, 1.5, 0.25, []),  # of one element every error is a factor
        (2, 0.0, 1.0, []),  # zeros are no multiple
        (2, -1.0, 4.0, ["-1"]),
        (2, 1.0 + 2.0**-13, 2.0**-26, ["1.00012"]),
        (2, 1.0 + 2.0**-14, 2.0**-28, ["1+6.1e-05"]),
    ],
)
def test_a_factor_makes_up_most_of_an_error(compared, xy, sum_dd, says):
    moments = Moments(2, compared=compared, yy=1.0, xy=xy, sum_dd=sum_dd, max_abs=1.0)
    for changed, want in ((moments, says), (moments._replace(max_abs=0.0), []), (moments._replace(yy=0.0), [])):
        own = found()._replace(measurement=Measurement(found().pair, changed))
        assert words(evidence.pattern_reasons(own)) == [f"the whole target is {one} times the golden" for one in want]
    assert evidence.pattern_reasons(found()) == []


def test_the_first_of_two_values_that_look_rounded_is_named():
    fields = {"minimum": -1.0625, "maximum": 1.0625}
    pair = found().pair
    side = Moments(4).target
    moments = Moments(4, side._replace(**fields), side._replace(minimum=-1.1, maximum=1.1))
    both = [found()._replace(measurement=Measurement(pair._replace(slot=f"output:{at}"), moments)) for at in (0, 1)]
    (got,) = evidence.type_reasons([], both)
    assert (got.kind, got.facts["slot"].value, got.facts["dtype"].slot) == ("type", "output:0", "output:0")


def fused(originals=(), passes=()):
    made = Operator("fused", "fused", "fused", "", 0, (), originals=originals, passes=passes)
    return words(evidence.fused_reasons(Pair(0, "output:0", made, None, None, None)))


@pytest.mark.parametrize(
    "originals, passes, says",
    [
        ("", "", []),
        ("a", "", []),
        ("a", "P", ["produced by P"]),
        ("", "P", ["produced by P"]),
        ("ab", "", ["fused from a, b"]),
        ("ab", "PQ", ["fused from a, b by P, Q"]),
        ("abcdef", "PQRS", ["fused from a, b, c, d, e, f by P, Q, R, S"]),
        ("abcdefg", "PQRST", ["fused from a, b, c, d, e, f … by P, Q, R, S"]),
    ],
)
def test_a_fused_operator_names_six_operators_and_four_passes(originals, passes, says):
    assert fused(tuple(originals), tuple(passes)) == says
    assert evidence.fused_reasons(Pair(0, "output:0", None, found().pair.golden_op, None, None)) == []


FOLDED = [found(f"input:{at}", tensors=({"stored": True}, None)) for at in range(4)]


@pytest.mark.parametrize(
    "inputs, says",
    [
        ([], ""),
        ([found("input:0", tensors=({"stored": True}, {"stored": True})), found("input:1", tensors=({}, None))], ""),
        ([found("input:9"), *FOLDED[:1]], "input:0"),
        (FOLDED, "input:0, input:1, input:2 …"),
    ],
)
def test_folded_weights_share_the_suspicion(inputs, says):
    text = f"the error is in this operator or in its folded weights ({says}), which the golden run does not have"
    assert words(evidence.folded_reasons(inputs)) == ([text] if says else [])


def named(name, shape=(4,), **fields):
    tensors = (TensorRef("input:0", "float32", (7,)), TensorRef("output:0", "float32", shape))
    return Operator(name, "norm", "norm", fields.pop("phase", ""), 0, tensors, **fields)


ALONE = Pair(1, "output:0", None, named("next"), None, None)


@pytest.mark.parametrize(
    "target, after, said",
    [
        (named("own"), ALONE, True),
        (None, ALONE, False),
        (named("own", phase="forward"), ALONE, False),
        (named("own", originals=("a",)), ALONE, False),
        (named("own", (5,)), ALONE, False),
        (named("own"), None, False),
        (named("own"), ALONE._replace(target_op=named("its partner")), False),
        (named("own"), ALONE._replace(golden_op=None), False),
    ],
)
def test_the_next_operator_of_the_golden_may_be_fused_into_this_one(target, after, said):
    got = words(evidence.follower_reasons(Pair(0, "output:0", target, named("own"), None, None), after))
    assert [one.startswith("the next golden operator next has no partner") for one in got] == [True] * said


def test_arguments_of_an_operator_without_a_partner_are_not_compared():
    both = named("a", arguments={"eps": 1}), named("a", arguments={"eps": 2})
    pair = Pair(0, "output:0", *both, None, None)
    assert len(evidence.argument_reasons(pair)) == 1
    assert evidence.argument_reasons(pair._replace(target_op=None)) == []
    assert evidence.argument_reasons(pair._replace(golden_op=None)) == []
    (cut,) = words(evidence.argument_reasons(pair._replace(target_op=named("a", arguments={"eps": "x" * 99}))))
    assert cut == f"argument eps is '{'x' * 59} in the target, 2 in the golden"
