"""Rows of the health of each run: errors that `npucmp check` finds in the golden run or only in the target, overflow on
one side, accumulated gradients, repeatability."""

from __future__ import annotations

from collections import Counter
from typing import Optional

from npucmp.comparability.answers import differs, not_applicable, same, unknown
from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.run_pair import RunPair
from npucmp.health.facts import Tensor
from npucmp.measure.recorded_stats import equal_by_record
from npucmp.model import first_of
from npucmp.model.check_finding import Symptom
from npucmp.model.item_result import ItemResult
from npucmp.model.optypes import is_gradient
from npucmp.report.phrases import count_of


def golden_health(both: RunPair) -> ItemResult:
    """Errors of the golden run, which make it unusable as a reference."""
    return _symptom_result([one for one in both.run_findings[1].symptoms if _is_error(one)], "the reference has errors")


def target_health(both: RunPair) -> ItemResult:
    """Errors of the target that the golden run does not have."""
    known = {(one.rule, one.where) for one in both.run_findings[1].symptoms}
    rules = {one.rule for one in both.run_findings[1].symptoms if not one.where}
    symptoms = [one for one in both.run_findings[0].symptoms
            if _is_error(one) and (one.rule, one.where) not in known and one.rule not in rules]  # fmt: skip
    return _symptom_result(symptoms, "the target has errors")


def _is_error(one: Symptom) -> bool:
    return one.severity == "error" and not one.follows


def _symptom_result(symptoms: list[Symptom], what: str) -> ItemResult:
    if not symptoms:
        return same("npucmp check finds no error")
    words = first_of([f"{one.rule} {one.where}".strip() + f": {one.because}" for one in symptoms], 2)
    return differs(f"{what}: {words}", places=len(symptoms), first=symptoms[0].where, remedy=symptoms[0].remedy)


def overflow(both: RunPair) -> ItemResult:
    """NaN, Inf and saturation on one side only."""
    here, there = Counter[str](), Counter[str]()
    first = {"target": "", "golden": ""}
    for _, target, golden in both.steps:
        for side, step, found in (("target", target, here), ("golden", golden, there)):
            events = [one for one in step.events if one.alarm and one.kind]
            found.update(one.kind for one in events)
            named = (one.operator.name for one in events if one.operator is not None)
            first[side] = first[side] or next(named, "")
    if not here and not there:
        return same("neither side overflows")
    if {*here} == {*there}:
        return same(f"both hold {' and '.join(here)}", places=sum(here.values()))
    side = "target" if {*here} - {*there} else "golden"
    kinds = sorted({*here} ^ {*there})
    words = f"{', '.join(kinds)} only in {side} (first: {first[side]}): run npucmp overflow"
    return differs(words, places=abs(sum(here.values()) - sum(there.values())), first=first[side])


def accumulation(both: RunPair) -> ItemResult:
    """Whether gradients are sums over several steps on one side."""
    decisions = [
        {one.rule: one for one in examined.decisions}.get("grad.accumulated") for examined in both.run_findings
    ]
    if None in decisions or any(one is not None and one.decided == "no" for one in decisions):
        return unknown("needs two steps with a backward pass and gradients of parameters")
    found = [bool(one is not None and one.found) for one in decisions]
    words = {True: "accumulated or not cleared", False: "computed per step"}
    odd = [] if found[0] != found[1] else _early_gradients(both)
    if odd:
        differences = f"{count_of(len(odd), 'gradient')} of the second step differ (first: {odd[0]})"
        return differs(
            f"{differences}, although the weights and the gradients from operators agree", places=len(odd), first=odd[0]
        )
    if found[0] == found[1]:
        return same(words[found[0]])
    return differs(f"gradients are {words[found[0]]} in target, {words[found[1]]} in golden")


def _early_gradients(both: RunPair) -> list[str]:
    """Parameters whose gradients differ in the second step although their weights there, their gradients in the first
    step and most gradients written by operators in the second step are equal."""
    found = []
    for one in both.weights:
        if one.target is None or one.golden is None:
            continue
        a, b = one.at[0] + 1, one.at[1] + 1
        if a >= len(one.target.weights) or b >= len(one.golden.weights):
            return []
        weights = one.target.weights[a], one.golden.weights[b]
        before = one.target.gradients[a - 1], one.golden.gradients[b - 1]
        after = one.target.gradients[a], one.golden.gradients[b]
        if _same(*weights) and _same(*before) and _same(*after) is False:
            found.append(one.name)
    if not found or len(both.steps) < 2:
        return []
    written = [(both.facts[id(pair.target)], both.facts[id(pair.golden)]) for pair in both.steps[1][0].pairs
              if pair.target is not None and pair.golden is not None and pair.target_op is not None
              and pair.slot.startswith("output:") and is_gradient(pair.target_op)]  # fmt: skip
    equal = sum(_same(x, y) is True for x, y in written)
    return found if written and equal > len(written) / 2 else []


def _same(x: Optional[Tensor], y: Optional[Tensor]) -> Optional[bool]:
    """Whether two tensors have equal bits; None if unknown."""
    if x is None or y is None:
        return None
    if not (x.figures.bits or y.figures.bits):
        return False if x.shape == y.shape and equal_by_record(x.ref, y.ref) is False else None
    if not (x.figures.bits and y.figures.bits):
        return None
    return x.figures.bits == y.figures.bits


def repeatable(both: RunPair) -> ItemResult:
    """Whether a second run of the target has equal bits; requires --repeat."""
    if both.user_input.repeated is None:
        return not_applicable("needs --repeat DUMP")
    is_same, words = both.user_input.repeated()
    return same(words) if is_same else differs(words)


ROWS = (
    CheckItem("gradient.accumulation", "warning", "gradients of several steps",
        "clear or accumulate gradients in the same way on both sides", accumulation),
    CheckItem("overflow", "error", "NaN and Inf on one side", "npucmp overflow finds the operators that produce them",
        overflow),
    CheckItem("golden.health", "error", "check of the golden run", "run npucmp check on the golden run", golden_health),
    CheckItem("target.health", "error", "check of the target", "run npucmp check on the target", target_health),
    CheckItem("repeatable", "warning", "a repeated run of the target", "run npucmp rerun-diff first", repeatable),
)  # fmt: skip
