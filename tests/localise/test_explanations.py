"""Errors that the inputs of an operator explain: their bounds, and the findings that follow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.judge.tolerance import Limit
from npucmp.localise.explanations import GradualGrowth
from npucmp.model import Finding, Verdict
from npucmp.model.relation import SUM, AxisOrder, Relation
from tests.localise.explained import explained
from tests.localise.networks import paired

RELATION = Relation((0, 1), (SUM,))
NEAR = {"rel": 1e-4}
FEW = np.float32([3.3, 0.7])
LIMIT = 8 * 2.0**-24


def rule_of(found: Limit | None) -> str | None:
    return None if found is None else found.rule


def related(relation):
    return lambda findings: [
        paired(one, target=one.pair.target._replace(relation=relation)) if one.pair.target.is_output else one
        for one in findings
    ]


def within_a_module(findings: list[Finding]) -> list[Finding]:
    """The last operator is a module."""
    op = findings[-1].pair.target_op._replace(path="Module.layer")
    return [paired(one, target_op=op) if one.pair.order == op.order else one for one in findings]


@pytest.mark.parametrize(
    "line, bound",
    [
        ("mystery x~1e-3 -> y~7e-3", 8e-3),
        ("mystery x~1e-3 -> y~9e-3", None),
        ("mystery x~1e-3 w~2e-3 -> y~1.5e-2", 1.6e-2),  # the larger error of two inputs
        ("mystery x? -> y~1e-3", None),
    ],
)
def test_incoming_errors_explain_an_error_up_to_their_bound(line, bound):
    found = explained(line).of()
    assert found == (None if bound is None else (pytest.approx(bound, **NEAR), "growth"))


@pytest.mark.parametrize(
    "line, tainted, found",
    [
        ("mystery x~1e-7 -> y~3e-6", False, None),
        ("mystery x~1e-7 -> y~3e-6", True, 8 * LIMIT),  # the input counts as at its limit
        ("mystery x~1e-7 -> y~5e-6", True, None),
        ("mystery x? -> y~3e-6", True, None),  # its error is unknown
        ("mystery x~1e-3 -> y~3e-3", True, 8e-3),  # larger than its limit
    ],
)
def test_inputs_behind_a_root_count_as_at_their_limit(line, tainted, found):
    one = explained(line)
    one.intervals.any_tainted = tainted
    assert one.of() == (None if found is None else (pytest.approx(found, **NEAR), "growth"))


def test_an_explanation_holds_until_the_next_operator_or_another_choice():
    one = explained("mystery x~1e-3 -> y~9e-3 z~2e-3")
    node = one.nodes[0]
    assert one.of() is None and one.of(output=1).rule == "growth"
    one.explanations.set(node.outputs[0], Limit(1.0, "recomputed"))
    assert one.of() == Limit(1.0, "recomputed") and one.of(output=1).rule == "growth"
    one.seen.changed_choice_share = 0.01
    assert one.of() != Limit(1.0, "recomputed")
    one.seen.changed_choice_share = 0.0
    assert one.of() == Limit(1.0, "recomputed")
    one.explanations.begin()
    assert one.of() is None


def test_the_share_of_flipped_choices_explains_other_rows():
    for line, rule in (
        ("gather x~1e-8 -> y~3e-1", "routed"),
        ("gather x -> y~3e-1", None),
    ):  # what agrees explains nothing
        one = explained(line)
        assert one.of() is None
        one.seen.changed_choice_share = 0.01
        assert one.of() == ((pytest.approx(4 * math.sqrt(0.01)), rule) if rule else None)


@pytest.mark.parametrize(
    "line, by_round_off, change, rule",
    [
        ("mystery x -> y", True, related(None), "growth"),
        ("mystery x -> y", False, related(None), None),  # by the user's rules, inputs that agree explain nothing
        ("mystery x~1e-7 -> y~1e-7", False, related(None), None),  # it agrees by the user's rules
        ("mystery x~1e-3 -> y~1e-3", False, related(None), "growth"),
        ("mystery x~1e-3 -> y~1e-3", True, related(RELATION), "growth"),
        ("mystery x~1e-3 -> y~1e-3", True, related(RELATION._replace(unreduced=True)), None),
        ("mystery x~1e-3 -> y~1e-3", True, related(AxisOrder((1, 0))), "growth"),
        ("mystery x~1e-3 -> y~1e-3", True, lambda found: [paired(one, target=None) for one in found], "growth"),
    ],
)
def test_explanations_of_a_case(line, by_round_off, change, rule):
    assert rule_of(explained(line, by_round_off=by_round_off, change=change).of()) == rule


@pytest.mark.parametrize(
    "lines, known, change, found",
    [
        (["relu x~1e-3 -> y~9e-3", "mystery x~1e-3 -> y~9e-3"], {}, within_a_module, Limit(2.0, "inside")),
        (["relu x~1e-3 -> y~9e-3", "mystery x~1e-3 -> y~7e-3"], {}, within_a_module, "growth"),
        (["relu x~1e-3 -> y~9e-3", "mystery x~1e-3 -> y~9e-3"], {}, list, None),  # no module
        (["relu x~1e-3 -> y~8.5e-3", "mystery x~1e-3 -> y~9e-3"], {}, within_a_module, None),  # another error
        (["relu x~1e-3 -> z~9e-3", "mystery x~1e-3 -> y~9e-3"], {}, within_a_module, None),  # another tensor
        (["relu x~1e-3 -> y~9e-3", "mystery x~1e-3 -> y~9e-3"], {"tainted": True}, within_a_module, None),
    ],
)
def test_a_module_has_the_explanation_of_the_operator_inside(lines, known, change, found):
    one = explained(*lines, change=change)
    inner = one.findings[1]
    assert rule_of(one.of()) == ("growth" if found == "growth" else None)  # the operator inside is not explained
    one.learn(inner, **known)
    one.explanations.excuse(inner, Limit(2.0, "inside"))
    one.explanations.begin()
    assert (one.of() if isinstance(found, Limit) else rule_of(one.of())) == found


@pytest.mark.parametrize(
    "slot, rule, known, words",
    [
        (1, "growth", True, "explained by the errors of its inputs"),
        (0, "growth", True, "explained by upstream errors"),
        (1, "constant_rows", True, "explained by rounding in rows that are constant in its input"),
        (0, "cancellation", True, "explained by the errors of the terms of its sum"),
        (1, "growth", False, "explained by the errors of its inputs"),
    ],
)
def test_an_explained_error_is_a_match_or_unknown_from_statistics(slot, rule, known, words):
    one = explained("mystery x~1e-3 -> y~1e-3", change=list if known else without_moments)
    finding = one.findings[slot]
    one.explanations.excuse(finding, Limit(0.25, rule))
    found = one.explanations.latest(finding)
    verdict = Verdict.MATCH if known else Verdict.UNKNOWN
    assert (found.verdict, found.explained_by, found.explained_limit) == (verdict, rule, 0.25)
    assert found.because == f"{finding.because}; {words}"
    assert one.explanations.revised == {slot: found}


def without_moments(findings):
    return [one._replace(measurement=one.measurement._replace(moments=None)) for one in findings]


@pytest.mark.parametrize(
    "by, by_round_off, changes",
    [
        (None, True, {}),
        (Limit(0.25, "growth"), False, {}),
        (Limit(0.25, "growth"), True, {"verdict": Verdict.NONFINITE}),
        (Limit(0.25, "growth"), True, {"verdict": Verdict.MATCH}),
        (Limit(0.25, "growth"), True, {"metric": "checksum"}),
        (Limit(0.25, "growth"), False, {"verdict": Verdict.SHAPE}),
        (None, True, {"verdict": Verdict.SHAPE}),
    ],
)
def test_no_other_difference_is_excused(by, by_round_off, changes):
    one = explained("mystery x~1e-3 -> y~1e-3", by_round_off=by_round_off)
    finding = one.findings[1]._replace(**changes)
    one.explanations.excuse(finding, by)
    assert one.explanations.revised == {} and one.explanations.latest(finding) is finding
    assert one.seen.changed_choice_share == 0.0 and one.seen.residues == set()


@pytest.mark.parametrize("rule, shape, left", [("cancellation", (20,), {1}), ("growth", (20,), set()),
                                               ("cancellation", (4, 5), set())])  # fmt: skip
def test_a_vector_whose_terms_cancel_is_the_rest_of_a_sum(rule, shape, left):
    y = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    one = explained("mystery x~1e-3 -> y~1e-3", y=y)
    one.explanations.excuse(one.findings[1], Limit(0.25, rule))
    assert one.seen.residues == left


@pytest.mark.parametrize("rule, before, share", [("choice", 0.0, 0.1), ("choice", 0.5, 0.5), ("routed", 0.0, 0.0)])
@pytest.mark.parametrize("by_round_off", [True, False])
def test_the_largest_share_of_a_choice_that_flipped(rule, before, share, by_round_off):
    places = np.arange(20, dtype=np.int32)
    other = places.copy()
    other[3:5] = 40
    one = explained("argsort x~1e-3 -> y~other", by_round_off=by_round_off, y=places, other=other)
    one.seen.changed_choice_share = before
    one.explanations.excuse(one.findings[1], Limit(math.inf, rule))
    assert one.seen.changed_choice_share == pytest.approx(share)


@pytest.mark.parametrize("before, share", [(0.0, 0.2), (0.5, 0.5)])
def test_another_number_of_rows_is_unknown_behind_a_choice(before, share):
    one = explained("mystery x~1e-3 -> y")
    one.seen.changed_choice_share = before
    finding = paired(one.findings[1], target=one.findings[1].pair.target._replace(shape=(5, 5)))
    finding = finding._replace(verdict=Verdict.SHAPE, because="shapes differ")
    one.explanations.excuse(finding, Limit(math.inf, "routed"))
    found = one.explanations.latest(finding)
    assert one.seen.changed_choice_share == pytest.approx(share)
    assert (found.verdict, found.explained_by) == (Verdict.UNKNOWN, "routed")
    assert found.because == "shapes differ; a choice upstream differs"


@pytest.mark.parametrize(
    "line, excused, left",
    [
        ("mystery x~1e-3 -> y~2e-3 z~3e-3 q", {1, 2}, set()),
        ("mystery x~1e-3 -> y~2e-3 f~2e-3", {1, 2}, set()),
        ("mystery x? -> y~2e-3 f~2e-3", set(), {2}),  # few numbers of unknown inputs may be the rest of a sum
        ("mystery x~1e-3 -> y~9e-3", set(), set()),
        ("mystery x~1e-3 w -> x~2e-3", {2}, set()),
    ],
)
def test_outputs_that_their_inputs_explain_are_excused(line, excused, left):
    one = explained(line, f=FEW)
    one.excuse_all()
    assert {row for row, found in one.explanations.revised.items() if found.explained_by == "growth"} == excused
    assert set(one.explanations.revised) == excused and one.seen.residues == left


@pytest.mark.parametrize(
    "line, excused",
    [
        ("add_ x~2e-3 w -> x~2e-3", {2, 4}),
        ("add_ x~2e-3 w -> x~9e-3", {2}),
        ("add_ x~2e-3 w -> y~2e-3", {4}),  # the input is not overwritten
        ("copy_ x~2e-3 w -> x~2e-3", {4}),  # memory that the operator does not read
    ],
)
def test_the_latest_error_of_its_shape_explains_an_overwritten_input(line, excused):
    one = explained("mystery q~1e-3 -> z~1e-3", line)
    one.seen.learn_shapes(one.nodes[0])
    one.excuse_all()
    assert {row for row, found in one.explanations.revised.items() if found.explained_by == "growth"} == excused


@pytest.mark.parametrize(
    "line, rows",
    [
        ("add_ x~9e-2 w -> x", {0}),
        ("add_ x~9e-2 w -> y", set()),  # the input is not overwritten
        ("add x~9e-2 w -> x", set()),
        ("add_ x w -> x", set()),
        ("copy_ x~9e-2 w -> x", set()),  # memory that the operator writes to and does not read
    ],
)
def test_an_overwritten_input_that_no_error_explains_is_unknown(line, rows):
    one = explained(line)
    one.excuse_all()
    assert set(one.explanations.revised) == rows
    assert {one.explanations.revised[row].rule for row in rows} <= {"overwritten"}
    assert {one.explanations.revised[row].verdict for row in rows} <= {Verdict.UNKNOWN}


@pytest.mark.parametrize(
    "steps, steepest",
    [
        ([(1e-3, 2e-3), (1e-3, 4e-3), (1e-3, 3e-3)], 1),
        ([(1e-3, 4e-3), (1e-3, 4e-3)], 0),  # the first of two
        ([(1e-3, 2e-3), (1e-4, 5e-4)], 1),  # growth counts, not size
        ([(1e-3, 2e-3), (1e-3, 9e-3)], 0),  # more than an operator may enlarge an error
        ([(1e-3, 9e-3)], None),
        ([(2e-2, 3e-2)], None),  # it was too large before
        ([(0.0, 1e-3)], None),
        ([], None),
    ],
)
def test_the_steepest_growth_of_errors(steps, steepest):
    growth, nodes = GradualGrowth(lambda case: False), []
    for read, wrote in steps:
        nodes += explained(f"mystery x~{read} -> y~{wrote}").nodes
        growth.learn(nodes[-1], nodes[-1].outputs, read)
    assert growth.hopeless is None
    if steepest is None:
        assert growth.steepest is None
    else:
        read, wrote = steps[steepest]
        assert growth.steepest == (pytest.approx(wrote / read, **NEAR), nodes[steepest], nodes[steepest].outputs[0])
        assert growth.steepest[1] is nodes[steepest]


def test_the_first_error_that_is_too_large():
    asked = []

    def is_large(case):
        asked.append((case.grew_stepwise, case.input_error, case.node))
        return case.error > 2.5e-3

    growth = GradualGrowth(is_large)
    nodes = [explained(f"mystery x~1e-3 -> {words}").nodes[0] for words in ("y~2e-3 z~9e-3", "y~3e-3 z~4e-3", "y~5e-3")]
    for node in nodes:
        growth.learn(node, node.outputs, 1e-3)
    assert growth.hopeless is nodes[1].outputs[0]
    assert asked == [(True, 1e-3, nodes[0]), (True, 1e-3, nodes[1])]


@pytest.mark.parametrize(
    "line, skip, steepest, hopeless",
    [
        ("mystery x~1e-2 -> y~2e-2", (), 2.0, True),  # 64 √u is 1.6 %
        ("mystery x~1e-2 -> y~1.5e-2", (), 1.5, False),
        ("mystery x~1e-2 -> y~2e-2", ("gradual",), 2.0, False),
        ("mystery x? -> y~2e-2", (), None, False),
        ("mystery x~1e-2 w~5e-3 -> y~2e-2", (), 2.0, True),
    ],
)
def test_excused_errors_that_grow(line, skip, steepest, hopeless):
    one = explained(line, skip=skip)
    one.excuse_all()
    growth = one.explanations.growth
    assert (growth.steepest and growth.steepest[0]) == (steepest and pytest.approx(steepest, **NEAR))
    assert growth.hopeless == (one.nodes[0].outputs[0] if hopeless else None)


def test_an_error_of_unknown_inputs_does_not_grow():
    """In bfloat16, growth counts up to an error of 4."""
    one = explained("mystery x? -> y~2e-2", change=lambda found: [one._replace(working=2.0**-8) for one in found])
    one.excuse_all()
    assert one.explanations.growth.steepest is None


def test_the_rest_of_a_sum_does_not_grow():
    one = explained("mystery x~1e-2 -> y~2e-2")
    one.seen.mark_residue(one.findings[0])
    one.excuse_all()
    assert one.explanations.growth.steepest is None
