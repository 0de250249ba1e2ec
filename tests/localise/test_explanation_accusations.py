"""Errors that the inputs of an operator do not explain, the input that reaches it, and rules that accuse a tensor."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.judge.tolerance import Limit
from npucmp.localise.evidence import reason
from npucmp.localise.recomputation import NAME as RECOMPUTED
from npucmp.localise.rule_context import RuleContext
from npucmp.model import Finding, Statistics, Verdict
from tests.localise.explained import argued, explained
from tests.localise.networks import paired, values_of

MANY = np.random.default_rng(5).standard_normal((8, 16)).astype(np.float32)
ONE_WRONG, SCALED = MANY.copy(), (MANY * 1.001).astype(np.float32)
ONE_WRONG[2, 3] += 2e-6  # below the limit of the norm
SHARES = np.full((8, 16), 1 / 16, np.float32) * np.linspace(0.9, 1.1, 16, dtype=np.float32)
TENSORS = {"a": MANY, "wrong": ONE_WRONG, "scaled": SCALED, "s": SHARES, "t": (SHARES * 1.01).astype(np.float32)}


def said(own):
    return None if own is None else (own.finding.pair.slot, own.rule)


def settled(rows: float):
    """A layer norm of which some rows hold only rounding."""
    return lambda findings: [
        one._replace(measurement=one.measurement._replace(settled=rows)) if one.pair.slot == "output:0" else one
        for one in argued(findings)
    ]


@pytest.mark.parametrize(
    "line, by_round_off, change, found",
    [
        ("mystery x~1e-3 -> y~9e-3", True, list, ("output:0", "round_off")),
        ("mystery x~1e-3 -> y~9e-3", False, list, ("output:0", "round_off")),
        ("mystery x~1e-3 -> y~9e-3 z~1e-2 q~9.5e-3", True, list, ("output:1", "round_off")),  # the largest of several
        ("mystery x~1e-3 -> y~7e-3 z~9e-3", True, list, ("output:1", "round_off")),
        ("mystery x~1e-3 -> y~7e-3", True, list, None),
        ("mystery x -> y~1e-7", True, list, None),
        ("mystery x -> y~2e-7", True, argued, ("output:0", "arguments")),
        ("mystery x -> y~2e-7 z~4e-7 q~3e-7", True, argued, ("output:1", "arguments")),
        ("mystery x -> y~2e-7 z~9e-3", True, argued, ("output:1", "round_off")),  # a larger error comes first
        ("mystery x -> y~2e-7", False, argued, None),
        ("mystery x~1.5e-7 -> y~2e-7", True, argued, None),  # less than twice what it read
        ("mystery x? -> y~2e-7", True, argued, None),  # what it read is unknown
        ("mystery x~1e-3 -> y~4e-3", True, settled(9e-3), ("output:0", "arguments")),
        ("layer_norm x~1e-3 -> y~4e-3", True, settled(7e-3), ("output:0", "arguments")),  # other inputs explain it too
        ("layer_norm x -> y~4e-3", True, settled(1e-7), None),  # rows that hold only rounding
        ("layer_norm x -> y~2e-7", True, settled(1e-7), ("output:0", "arguments")),  # it does not differ
        ("layer_norm x -> y~4e-3 z~4e-7", True, settled(1e-7), ("output:1", "arguments")),
        ("layer_norm x -> y~4e-3", True, settled(1e-3), ("output:0", "round_off")),
    ],
)
def test_an_error_that_the_inputs_do_not_explain_or_that_a_rule_accuses(line, by_round_off, change, found):
    one = explained(line, by_round_off=by_round_off, change=change)
    own = one.own_error()
    assert said(own) == found
    if found and found[1] == "arguments":
        assert one.explanations.revised == {own.finding.row: own.finding}
        assert (own.finding.verdict, own.finding.rule) == (Verdict.DIVERGED, "arguments")
    else:
        assert one.explanations.revised == {}


@pytest.mark.parametrize(
    "line, tainted, found",
    [
        ("mystery a? -> a~wrong", False, ("output:0", "single_element")),
        ("mystery a? -> a~wrong", True, ("output:0", "single_element")),
        ("mystery a? -> x a~wrong", False, ("output:1", "single_element")),
        ("softmax a? -> s~near", False, ("output:0", "law")),
        ("softmax a? -> a~wrong s~near", False, ("output:1", "law")),  # a law comes first
        ("softmax a? -> s", False, None),
        ("mystery a? -> a~tiny", False, ("output:0", "scaled")),
        ("mystery a? -> a~tiny", True, None),  # a root upstream may be the reason
        ("mystery a? -> a~wrong a~tiny", True, ("output:0", "single_element")),
        ("mystery a? -> a~tiny a~wrong", True, ("output:1", "single_element")),
        ("mystery a? -> a~tiny a~wrong", False, ("output:0", "scaled")),
        ("mystery a? -> x", False, None),
    ],
)
def test_accusations_of_an_operator_of_unknown_inputs(line, tainted, found):
    more = {"near": (SHARES * np.float32(1 + 3e-6)), "tiny": (MANY * np.float32(1 + 4e-7)).astype(np.float32)}
    one = explained(line, change=as_matches, **TENSORS, **more)
    one.intervals.any_tainted = tainted
    own = one.own_error()
    assert said(own) == found
    assert list(one.explanations.revised) == ([own.finding.row] if found else [])


def as_matches(findings: list[Finding]) -> list[Finding]:
    """The findings within a wide tolerance, so that no output differs by its size."""
    return [one._replace(verdict=Verdict.MATCH) if one.verdict is Verdict.DIVERGED else one for one in findings]


@pytest.mark.parametrize("read, rule", [("a", "scaled"), ("a~wrong", "scaled"), ("a?", "law")])
def test_without_known_inputs_a_law_alone_accuses_an_error_of_any_size(read, rule):
    one = explained(f"softmax {read} -> s~t", change=as_matches, **TENSORS)
    assert said(one.own_error()) == ("output:0", rule)


def accused(finding: Finding, node) -> RuleContext:
    return RuleContext(finding, node, 0.0)


@pytest.mark.parametrize(
    "by_round_off, only, rule",
    [(True, "", "arguments"), (True, "arguments", "arguments"), (True, "law", None), (False, "", None)],
)
def test_a_rule_that_accuses_a_tensor(by_round_off, only, rule):
    one = explained("mystery x -> y~2e-7", by_round_off=by_round_off, change=argued)
    node = one.nodes[0]
    own = one.explanations.accuse(accused(node.outputs[0], node), *([only] if only else []))
    assert said(own) == (rule and ("output:0", rule))
    if rule:
        assert own.finding.rule == rule and "more than rounding explains" in own.finding.because
    assert one.explanations.latest(node.outputs[0]) == (own.finding if rule else node.outputs[0])


def test_single_elements_accuse_without_other_rules():
    one = explained("mystery a -> a~wrong x~2e-7", change=argued, **TENSORS)
    node = one.nodes[0]
    assert said(one.explanations.accuse_single(accused(node.outputs[0], node))) == ("output:0", "single_element")
    assert one.explanations.accuse_single(accused(node.outputs[1], node)) is None


REASONS = [reason("recomputed", "the operator is off by {size}", size="3"), reason("more", "and more")]


@pytest.mark.parametrize(
    "changes, because",
    [({}, "rel_l2 2.00e-07, limit 4.77e-07; the operator is off by 3"), ({"because": ""}, "the operator is off by 3")],
)
def test_recomputation_accuses_an_error_below_the_limit(changes, because):
    one = explained("mystery x -> y~2e-7")
    finding = one.findings[1]._replace(because="rel_l2 2.00e-07, limit 4.77e-07")._replace(**changes)
    own = one.explanations.accuse_recomputed(finding, REASONS)
    assert own == (finding._replace(verdict=Verdict.DIVERGED, because=because, rule=RECOMPUTED), RECOMPUTED)
    assert one.explanations.revised == {1: own.finding}


def test_recomputation_leaves_an_error_above_the_limit():
    one = explained("mystery x -> y~2e-3")
    assert one.explanations.accuse_recomputed(one.findings[1], REASONS) == (one.findings[1], RECOMPUTED)
    assert one.explanations.revised == {}


# Inputs


FORWARD = "mul a~1e-3 b -> c"
SMALL, HUGE = np.float32(1e-6) * values_of("x"), np.float32(1e3) * values_of("v")


@pytest.mark.parametrize(
    "lines, letter, size, saved",
    [
        (["mystery x~1e-3 y~2e-3 -> z"], "y", 2e-3, False),
        (["mystery x~2e-3 y~1e-3 -> z"], "x", 2e-3, False),
        (["mystery x y~1e-7 -> z"], None, 1e-7, False),
        (["add k~1e-1 x~1e-3 -> z"], "x", 1e-3, False),  # an operand counts by its share of the sum
        (["mul k~1e-1 x~1e-3 -> z"], "k", 1e-1, False),
        ([FORWARD, "mul.backward@mul.0 g -> h"], "a", 1e-3, True),
        ([FORWARD, "mul.backward@mul.0 g~1e-4 -> h"], "a", 1e-3, True),
        ([FORWARD, "mul.backward@mul.0 g~2e-3 -> h"], "g", 2e-3, False),
        (["add a~1e-3 b -> c", "add.backward@add.0 g~1e-6 -> h"], "g", 1e-6, False),  # it saves nothing
        (["add a~1e-3 b -> c", "add.backward@add.0 g -> h"], "a", 1e-3, True),  # but no other input differs
        (["add_ x~1e-3 y~1e-4 -> x"], "y", 1e-4, False),  # overwritten
        (["add_ x~1e-3 y -> q"], "x", 1e-3, False),
        (["mystery x~1e-2 -> y~1e-3", "mystery y? q~1e-4 -> z"], "y", 1e-3, False),  # as its producer wrote it
        (["mystery x~1e-2 -> y", "mystery y? q~1e-4 -> z"], "q", 1e-4, False),
    ],
)
def test_the_input_whose_difference_reaches_the_outputs(lines, letter, size, saved):
    one = explained(*lines, k=SMALL)
    worst = one.explanations.worst_input(one.nodes[-1])
    assert worst.error == pytest.approx(size, rel=0.2)
    assert (worst.differs, worst.saved) == (letter is not None, saved)
    assert letter is None or worst.finding.pair.golden.label == letter


@pytest.mark.parametrize("line, alike", [("mystery x y -> z", "bit for bit"), ("mystery x y~1e-7 -> z", None),
                                         ("add_ x~1e-7 y -> x", "bit for bit")])  # fmt: skip
def test_inputs_that_agree(line, alike):
    one = explained(line)
    worst = one.explanations.worst_input(one.nodes[0])
    assert not worst.differs and (worst.finding is None) is (alike is not None)
    assert alike is None or worst.alike == alike


@pytest.mark.parametrize(
    "line, letter", [("linear.backward b g~1e-3 x w -> h", "g"), ("linear.backward b g -> h", "b")]
)
def test_an_infinite_error_that_reaches_no_output_is_not_the_worst(line, letter):
    """The gradient of a product depends on no bias, but the graph does not mark a lone vector as one."""

    def change(findings):
        infinite = {"error": math.inf, "verdict": Verdict.NONFINITE}
        return [one._replace(**infinite) if one.pair.golden.label == "b" else one for one in findings]

    one = explained(line, change=change, b=np.float32([3.3, 0.7, 0.1, 0.9, 0.4]))
    assert one.explanations.worst_input(one.nodes[0]).finding.pair.golden.label == letter


def test_excused_inputs_do_not_differ():
    one = explained("mystery p~1e-3 -> x~1e-3", "mystery x~1e-3 y~5e-4 -> z")
    node = one.nodes[-1]
    assert one.explanations.worst_input(node).finding.pair.golden.label == "x"
    one.explanations.excuse(node.inputs[0], Limit(1.0, "growth"))
    assert one.explanations.worst_input(node).finding.pair.golden.label == "y"


@pytest.mark.parametrize(
    "tainted, forward, found",
    [(True, FORWARD, True), (False, FORWARD, False), (True, "mul a b -> c~1e-3", True), (True, "mul a b -> c", False)],
)
def test_a_gradient_reads_what_differs_behind_a_root(tainted, forward, found):
    one = explained(forward, "mul.backward@mul.0 g -> h")
    one.intervals.any_tainted = tainted
    assert one.explanations.reads_what_differs(one.nodes[1]) is found
    for extra in one.nodes[1].extra_inputs:
        one.explanations.excuse(extra, Limit(1.0, "growth"))
    assert not one.explanations.reads_what_differs(one.nodes[1])


FIGURES = Statistics(2.0, -1.0, 0.5, 3.0)
UNPROVEN, PROVEN, OPEN, EQUAL, OTHER = "unproven", "proven", "open", "equal", "other"


def with_figures(*states: str):
    """Tensors by what is known of them: statistics that prove no error, statistics that prove one, nothing, or values
    that are equal or not."""
    known = {
        UNPROVEN: (0.0, None, Verdict.UNKNOWN),
        PROVEN: (1e-2, math.nan, Verdict.DIVERGED),
        OPEN: (None, None, Verdict.UNKNOWN),
        EQUAL: (None, 0.0, Verdict.MATCH),
        OTHER: (None, 1e-2, Verdict.DIVERGED),
    }

    def change(findings: list[Finding]) -> list[Finding]:
        return [_known(one, *known[state]) for one, state in zip(argued(findings), states)]

    return change


def _known(one: Finding, bound, error, verdict) -> Finding:
    measurement = one.measurement._replace(bound=bound, statistics=(FIGURES, FIGURES))
    return one._replace(measurement=measurement, error=error, verdict=verdict)


@pytest.mark.parametrize(
    "states, is_argued",
    [
        ((UNPROVEN, UNPROVEN, PROVEN), True),
        ((UNPROVEN, EQUAL, PROVEN), True),
        ((EQUAL, EQUAL, PROVEN), True),
        ((EQUAL, EQUAL, UNPROVEN), True),
        ((EQUAL, EQUAL, OTHER), False),  # no statistics
        ((UNPROVEN, EQUAL, OTHER), True),
        ((UNPROVEN, OPEN, PROVEN), False),
        ((UNPROVEN, PROVEN, PROVEN), False),
        ((OTHER, UNPROVEN, PROVEN), False),
    ],
)
def test_an_argument_that_differs_decides_if_statistics_of_the_inputs_agree(states, is_argued):
    one = explained("mystery x w -> y", change=with_figures(*states))
    assert one.explanations.is_argued(one.nodes[0]) is is_argued
    one.intervals.any_tainted = True
    assert one.explanations.is_argued(one.nodes[0]) is False


def test_without_another_argument_or_recorded_inputs_none_decides():
    for side, changes in (("golden_op", {"arguments": {"input:9": 1}}), (None, {"reads_recorded": False})):
        sides = [side] if side else ["target_op", "golden_op"]

        def change(findings, sides=sides, changes=changes):
            known = with_figures(UNPROVEN, UNPROVEN, PROVEN)(findings)
            return [paired(one, **{op: getattr(one.pair, op)._replace(**changes) for op in sides}) for one in known]

        one = explained("mystery x w -> y", change=change)
        assert one.explanations.is_argued(one.nodes[0]) is False


@pytest.mark.parametrize("state, is_argued", [(UNPROVEN, True), (EQUAL, True), (OPEN, False), (PROVEN, False)])
def test_the_producer_of_an_input_counts_for_an_argument(state, is_argued):
    one = explained("mystery x -> y", "mystery y -> z", change=with_figures(EQUAL, state, OPEN, PROVEN), y=MANY)
    node = one.nodes[1]
    assert one.sources.of(node.inputs[0]).finding == one.findings[1]
    assert one.explanations.is_argued(node) is is_argued
