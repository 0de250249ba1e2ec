"""Verdicts on single elements of parameters, and the places to look at."""

import math
from functools import partial

import numpy as np
import pytest

from npucmp.align.weights.limits import WeightLimit
from npucmp.align.weights.role import Role
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.assembly import joined
from npucmp.dump.readers.training_state import no_state
from npucmp.dump.readers.weight_payloads import scaled
from npucmp.localise import weight_roots as roots
from npucmp.localise.next_update import UpdateFinder
from npucmp.localise.weight_fault import JudgedWeight
from npucmp.localise.weight_faults import WeightFault
from npucmp.localise.weight_roots import judged
from npucmp.model import Cause, Finding, Measurement, Moments, Operator, Pair, TensorRef, Verdict
from npucmp.model.relation import WeightRelation
from tests.localise.weight_craft import RTOL, UP, Weights, drawn

COUNT = 8
weight_roots = partial(roots.weight_roots, updates=UpdateFinder(no_state(), no_state(), ANYWHERE))


def finding(verdict=Verdict.DIVERGED, because="as measured", *, name="layers.0.up.weight", row=0, moments=None,
            relation=None, **more):  # fmt: skip
    tensor = TensorRef("param:weight", "float32", (COUNT,))
    op = Operator(name, "up", "up", "", row, (tensor,))
    pair = Pair(row, tensor.slot, op, op, tensor._replace(relation=relation), tensor)
    return Finding(Measurement(pair, moments), verdict, because, row=row, **more)


def measured(verdict=Verdict.DIVERGED, because="as measured", **moments):
    """A finding of eight elements whose rel_l2 is a half."""
    own = {"elements": COUNT, "compared": COUNT, "xx": 4.0, "yy": 4.0, "sum_dd": 1.0, "max_abs": 1.0, **moments}
    return finding(verdict, because, moments=Moments(**own), explained_by="growth", explained_limit=9.0, limit=3.0)


@pytest.fixture
def weights(tmp_path):
    return Weights(tmp_path)


def absent(**more):
    """A pair whose values no file has."""
    return Weights(None).pair(None, None, **more)


@pytest.mark.parametrize("verdict, share", [("UNREADABLE", 0.0), ("SHAPE", 1.0), ("MISSING", 0.0), ("DIVERGED", 1.0)])
def test_without_a_measurement_the_verdict_stays(verdict, share):
    found = finding(Verdict[verdict])
    assert judged(found, absent(), ANYWHERE) == JudgedWeight(found, absent(), share)


@pytest.mark.parametrize("side", ["target", "golden"])
def test_a_parameter_of_one_side_keeps_its_verdict(side):
    found, pair = measured(Verdict.MISSING, outside=3), absent()._replace(**{side: None})
    assert judged(found, pair, ANYWHERE) == JudgedWeight(found, pair, 0.0)


def test_an_unreadable_parameter_keeps_its_verdict():
    found = measured(Verdict.UNREADABLE, outside=3)
    assert judged(found, absent(), ANYWHERE) == JudgedWeight(found, absent(), 0.0)


def test_elements_that_are_finite_on_one_side_are_a_share():
    found = measured(Verdict.NONFINITE, mismatched=2, outside=8)
    assert judged(found, absent(), ANYWHERE) == JudgedWeight(found, absent(), 0.25)
    none = measured(Verdict.NONFINITE, mismatched=2, elements=0)
    assert judged(none, absent(), ANYWHERE).share == 2.0  # no division by zero


BARE = {"is_bare": True}


@pytest.mark.parametrize(
    "target, golden, elements, verdict",
    [
        (BARE, {}, 8, Verdict.DIVERGED),
        ({}, BARE, 8, Verdict.DIVERGED),
        (BARE, BARE, 8, Verdict.MATCH),
        ({}, {}, 8, Verdict.MATCH),
        (BARE, {}, 0, Verdict.MATCH),
    ],
)
def test_codes_without_a_scale_are_no_values(target, golden, elements, verdict):
    """Even if all of them are equal."""
    pair = absent(of_target=target, of_golden=golden)
    row = judged(measured(equal=elements, elements=elements), pair, ANYWHERE)
    own = row.finding
    assert (own.verdict, row.share) == (verdict, 1.0 if verdict is Verdict.DIVERGED else 0.0)
    if verdict is Verdict.DIVERGED:
        assert (own.because, own.rule) == ("codes without a scale are no values: scale missing", "scale_missing")
        assert (own.error, own.metric, own.limit) == (0.5, "mismatch_ratio", 0.0)


@pytest.mark.parametrize(
    "verdict, words",
    [(Verdict.MATCH, "the same bits"), (Verdict.DIVERGED, "equal values"), (Verdict.UNKNOWN, "equal values")],
)
def test_equal_bits_match(verdict, words):
    row = judged(measured(verdict, "the same bits", equal=COUNT, outside=2), absent(), ANYWHERE)
    assert (row.finding.verdict, row.finding.because, row.share) == (Verdict.MATCH, words, 0.0)
    assert (row.finding.error, row.finding.rule, row.finding.metric) == (0.0, "equal", "rel_l2")
    assert (row.finding.explained_by, row.finding.explained_limit, row.finding.limit) == ("", 0.0, 0.0)


@pytest.mark.parametrize(
    "outside, verdict, words, metric",
    [
        (1, Verdict.DIVERGED, "1 of 8 elements differ by more than 1e-06 of the value", "mismatch_ratio"),
        (8, Verdict.DIVERGED, "8 of 8 elements differ by more than 1e-06 of the value", "mismatch_ratio"),
        (0, Verdict.MATCH, "no element differs by more than 1e-06 of the value", "rel_l2"),
    ],
)
def test_every_element_beyond_the_limit_counts(outside, verdict, words, metric):
    row = judged(measured(equal=7, outside=outside), absent(), ANYWHERE)
    assert (row.finding.verdict, row.finding.because, row.share) == (verdict, words, outside / 8)
    assert (row.finding.error, row.finding.metric, row.finding.rule) == (0.5, metric, "weight")
    assert (row.finding.explained_by, row.finding.explained_limit, row.finding.limit) == ("", 0.0, 0.0)


CODES, SCALE = np.arange(-4.0, 4.0).reshape(2, 4), np.array([[0.5], [0.25]])


def quantised(weights, off, *, limit=None, is_golden=False):
    """Codes with a step of 0.5 in their first row and 0.25 in the second, and the other side off by `off` in two
    elements; 7 elements are outside of the plain limit."""
    limit = WeightLimit(0.0, 0.0, 0.5) if limit is None else limit
    codes = scaled(weights.payload(CODES), weights.payload(SCALE), (1, 4))
    values = CODES * SCALE
    values[0, 0] += off
    values[1, 3] += off
    more = {"scale_dtype": "float32"}
    sides = (values, codes) if is_golden else (codes, values)
    pair = weights.pair(*sides, limit=limit, **{"of_golden" if is_golden else "of_target": more})
    return judged(measured(equal=1, outside=7), pair, ANYWHERE)


STEPS = "0.5 steps of the codes"


@pytest.mark.parametrize("is_golden", [False, True])
@pytest.mark.parametrize(
    "off, limit, beyond, words",
    [
        (0.12, None, 0, STEPS),
        (0.13, None, 1, STEPS),  # half a step of the second row alone
        (0.26, None, 2, STEPS),
        (0.13, WeightLimit(0.0, 0.01, 0.5), 0, STEPS),
        (0.13, WeightLimit(0.02, 0.0, 0.5), 0, "0.02 of the value and 0.5 steps"),
        (0.1255, WeightLimit(0.0, 0.0, 0.504), 0, "0.504 steps of the codes"),
        (0.13, WeightLimit(RTOL), 7, "1e-06 of the value"),  # no codes
    ],
)
def test_codes_are_judged_by_the_steps_of_their_scale(weights, off, limit, beyond, words, is_golden):
    found = quantised(weights, off, limit=limit, is_golden=is_golden).finding
    how = f"{beyond} of 8 elements differ" if beyond else "no element differs"
    assert found.because == f"{how} by more than {words}"
    assert found.verdict is (Verdict.DIVERGED if beyond else Verdict.MATCH)


def test_codes_without_known_steps_have_the_plain_limit(weights):
    limit = WeightLimit(0.0, 0.0, 0.5)
    pair = weights.pair(CODES, CODES + 9.0, limit=limit, of_target={"scale_dtype": "float32"})
    assert judged(measured(equal=1, outside=7), pair, ANYWHERE).share == 7 / 8


def test_lost_codes_leave_the_verdict_open(weights, tmp_path):
    lost = joined([weights.payload(CODES), weights.payload(CODES)._replace(path=str(tmp_path / "lost"))], 0)
    codes = scaled(lost, weights.payload(np.ones((4, 1))), (1, 4))
    limit = WeightLimit(0.0, 0.0, 0.5)
    pair = weights.pair(codes, drawn(4, 4), limit=limit, of_target={"scale_dtype": "float32"})
    row = judged(measured(equal=1, outside=7), pair, ANYWHERE)
    assert (row.finding.verdict, row.share, row.finding.error) == (Verdict.UNKNOWN, 0.0, None)
    assert row.finding.because.startswith("the step is unknown: ") and "lost" in row.finding.because
    assert row.finding.rule == "weight"


# The places to look at


class Faults:
    """Describes a pair by a label for its layer, and notes which pairs it describes."""

    context = ANYWHERE

    def __init__(self, label=lambda role: "element"):
        self.asked, self._label = [], label

    def fault(self, pair):
        self.asked.append(pair.role)
        return WeightFault(self._label(pair.role), "row {first} is off", {"first": 7})


def row(role, at=0, verdict=Verdict.DIVERGED, share=0.25, *, relation=None, because="as measured", error=None,
        of_target=None, **more):  # fmt: skip
    """One judged parameter in the row `at`."""
    name = f"layers.{role.layer}.mlp.{role.kind}_proj.weight"
    own = finding(verdict, because, name=name, row=at, relation=relation, error=error, limit=0.5,
                  metric="mismatch_ratio", rule="weight")  # fmt: skip
    pair = Weights(None).pair(None, None, role, of_target={"name": name, **(of_target or {})}, of_golden={"name": name})
    return JudgedWeight(own, pair._replace(**more), share)


def layers(*numbers, kind="up", **more):
    return [row(Role(number, kind, "weight"), at, **more) for at, number in enumerate(numbers)]


def named(roots):
    return [(one.place, one.pair.operator.name.split(".")[1], one.evidence[0].sentence()) for one in roots]


def test_a_wrong_parameter_is_a_place_to_look_at():
    (root,) = weight_roots([*layers(4, error=0.125), *layers(5, verdict=Verdict.MATCH)], Faults())
    assert (root.place, root.cause, root.slot, root.metric) == (1, Cause.GAP, "param:weight", "mismatch_ratio")
    assert (root.value, root.limit, root.input_error, root.output_error, root.rule) == (
        0.25,
        0.5,
        None,
        0.125,
        "weight",
    )
    assert (root.ranks, root.relation) == ((), "")
    assert [one.sentence() for one in root.evidence] == [
        "row 7 is off",
        "25.000% of its elements are beyond the rounding of float64",
    ]


def test_figures_that_are_not_finite_are_unknown():
    (root,) = weight_roots([row(UP, share=math.nan, error=math.inf)], Faults())
    assert (root.value, root.output_error) == (None, None)
    nameless = row(UP)
    nameless = nameless._replace(finding=nameless.finding._replace(metric=""))
    assert weight_roots([nameless], Faults())[0].metric == "diverged"


@pytest.mark.parametrize(
    "verdict, share, words",
    [
        (Verdict.DIVERGED, 0.0, []),
        (Verdict.DIVERGED, 1.0, []),
        (Verdict.DIVERGED, 1e-5, ["0.001% of its elements are beyond the rounding of int8 and float64"]),
        (Verdict.SHAPE, 0.5, []),
        (Verdict.NONFINITE, 0.5, ["NaN in the target"]),
    ],
)
def test_the_evidence_of_the_share(verdict, share, words):
    one = row(UP, verdict=verdict, share=share, because="NaN in the target", of_target={"dtype": "int8"})
    (root,) = weight_roots([one], Faults())
    assert [one.sentence() for one in root.evidence[1:]] == words


@pytest.mark.parametrize("verdict", [Verdict.MATCH, Verdict.UNREADABLE, Verdict.UNKNOWN, Verdict.MISSING])
def test_other_verdicts_are_no_place_to_look_at(verdict):
    assert weight_roots(layers(0, verdict=verdict), Faults()) == ()


@pytest.mark.parametrize(
    "names, words",
    [
        (((0, "layers.0.mlp.up_proj.weight"),), []),
        ((), []),
        (((0, "fused"), (1, "fused")), ["the target holds it in fused"]),
        (((0, "layers.0.mlp.up_proj.weight"), (1, "b")), ["the target holds it in layers.0.mlp.up_proj.weight, b"]),
        (((0, "a"), (1, "b"), (2, "c"), (3, "d")), ["the target holds it in a, b, c"]),
    ],
)
def test_the_tensors_of_the_target_are_named_if_they_have_other_names(names, words):
    (root,) = weight_roots([row(Role(0, "up", "weight"), share=1.0, of_target={"names": names})], Faults())
    assert [one.sentence() for one in root.evidence[1:]] == words


def test_a_parameter_of_one_side_is_described_too():
    one = row(UP, share=1.0, target=None)
    op_alone = one.finding.pair._replace(target=None)
    own = one.finding._replace(measurement=one.finding.measurement._replace(pair=op_alone))
    (root,) = weight_roots([one._replace(finding=own)], Faults())
    assert [each.sentence() for each in root.evidence] == ["row 7 is off"] and root.ranks == ()


def test_the_ranks_that_hold_it_are_named():
    relation = WeightRelation("rows of ranks", ((0, "a"), (1, "b")), 0.0, 0.0)
    (root,) = weight_roots([row(UP, relation=relation)], Faults())
    assert (root.ranks, root.relation) == (relation.ranks, relation.words) and relation.words and relation.ranks


def test_the_places_are_in_the_order_of_the_network():
    """A copy of another rank stands behind its parameter."""
    rows = [*layers(2, 0), *layers(1, kind="q"), *layers(1, kind="down")]
    rows = [one._replace(finding=one.finding._replace(row=at)) for at, one in enumerate(rows)]
    copy = row(Role(0, "up", "weight"), 9, copy=1)
    label = Faults(lambda role: f"{role}")
    found = weight_roots([copy, *rows], label)
    assert [one.pair.operator.name.split(".")[1:4:2] for one in found] == [
        ["0", "up_proj"], ["0", "up_proj"], ["1", "q_proj"], ["1", "down_proj"], ["2", "up_proj"]
    ]  # fmt: skip
    assert [one.place for one in found] == [1, 2, 3, 4, 5] and found[1].pair == copy.finding.pair


# Families


ALL = "all {} layers: up_proj: row 7 is off"


@pytest.mark.parametrize(
    "wrong, right, labels, expected",
    [
        ([0, 1, 2], [], "same", [(1, "0", ALL.format(3))]),
        ([2, 0, 1], [], "same", [(1, "2", ALL.format(3))]),
        ([0, 1], [2], "same", [(1, "0", "row 7 is off"), (2, "1", "row 7 is off")]),
        ([0, 1], [], "other", [(1, "0", "row 7 is off"), (2, "1", "row 7 is off")]),
        ([0], [], "same", [(1, "0", "row 7 is off")]),
    ],
)
def test_a_family_that_is_wrong_alike_in_all_layers_is_one_place(wrong, right, labels, expected):
    rows = layers(*wrong) + [row(Role(at, "up", "weight"), 90 + at, Verdict.MATCH) for at in right]
    found = weight_roots(rows, Faults(lambda role: labels if labels == "same" else f"{role.layer}"))
    assert named(found) == expected


def test_layers_that_one_side_lacks_do_not_count():
    lacking = row(Role(2, "up", "weight"), 5, Verdict.MISSING, target=None)
    other = row(Role(3, "up", "weight"), 6, Verdict.MISSING, golden=None)
    assert len(weight_roots([*layers(0, 1), lacking, other], Faults())) == 1


def test_two_parameters_of_one_layer_are_no_family():
    """A parameter and the copy of another rank."""
    rows = [row(UP, 0), row(UP, 1, copy=1)]
    assert len(weight_roots(rows, Faults())) == 2


def test_experts_of_all_layers_are_a_family():
    rows = [row(Role(layer, "gate", "weight", expert), 2 * layer + expert) for layer in (0, 1) for expert in (0, 1)]
    (root,) = weight_roots(rows, Faults())
    assert root.evidence[0].sentence() == "all 4 experts of all layers: gate_proj: row 7 is off"
    found = weight_roots([*rows[:3], row(Role(1, "gate", "weight", 1), 3, Verdict.MATCH)], Faults())
    assert len(found) == 3


@pytest.mark.parametrize(
    "name, slot, family",
    [
        ("layers.0.mlp.up_proj.weight", "", "up_proj"),
        ("layers.0.mlp.up_proj.bias", "", "bias"),
        ("layers.0.qkv.weight", "k.weight", "k"),
        ("experts.gate.3.1", "", "gate"),
        ("7", "", "7"),
    ],
)
def test_the_short_name_of_a_family(name, slot, family):
    rows = []
    for one in layers(0, 1):
        golden = one.pair.golden._replace(name=name, slot=slot)
        rows.append(one._replace(pair=one.pair._replace(golden=golden)))
    (root,) = weight_roots(rows, Faults())
    assert root.evidence[0].facts["family"].value == family


@pytest.mark.parametrize(
    "count, asked",
    [(3, [0, 1, 2]), (6, [0, 1, 2, 3, 4, 5]), (7, [0, 3, 6]), (8, [0, 3, 6]), (9, [0, 4, 8]), (61, [0, 30, 60])],
)
def test_of_a_large_family_the_first_middle_and_last_are_described(count, asked):
    finder = Faults()
    (root,) = weight_roots(layers(*range(count)), finder)
    assert [role.layer for role in finder.asked] == asked
    assert root.evidence[0].sentence() == ALL.format(count)


def test_a_member_that_is_not_described_holds_other_values():
    """Members that are described differ, so that each is a place."""
    found = weight_roots(layers(*range(7)), Faults(lambda role: f"{role.layer}"))
    described = [at for at, one in enumerate(found) if one.evidence[0].sentence() == "row 7 is off"]
    assert described == [0, 3, 6]
    assert {found[at].evidence[0].sentence() for at in (1, 2, 4, 5)} == {"its values differ"}


def test_the_first_of_each_family_is_described_first():
    """At most sixty parameters are."""
    rows = [row(Role(at % 2, f"={at // 2}", "weight"), at) for at in range(80)]
    finder = Faults()
    weight_roots(rows, finder)
    assert [role.layer for role in finder.asked] == [0] * 40 + [1] * 20
