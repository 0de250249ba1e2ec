"""One root for an optimizer's update that differs: parameters that agree in one step and differ in the next.

The cause lies between the two steps: the update of an optimizer, a learning rate, a gradient that was scaled, clipped
or reduced another way. The operator that reads such a parameter first is not at fault. The first of them is the root,
the others are its members. If values of both steps are known, the evidence says how the updates differ: lost, times one
factor, by a part of the parameters themselves (weight decay), or in another direction. If the factor
is one by the recorded loss scale, the evidence names that scale.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.flow.contents import content_of
from npucmp.localise.evidence import reason
from npucmp.localise.value_reader import ValueReader
from npucmp.model import Cause, Evidence, Finding, Root, Verdict
from npucmp.model.dtypes import SINGLE
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_output, is_parameter, running_statistics

MOST = 16  # parameters whose values of two steps are read: work
SAME = 0.02  # relative difference of two factors that are one, and of the rest that a relation leaves: chosen
NEAR = 30.0  # times 1 / loss scale: chosen: clipping changes the factor by the norm of the gradient
LEAST_SCALE = 8.0  # of a loss scale: chosen: smaller factors have other causes
SAME_WHOLE = SAME / 4  # relative difference: chosen: a whole number is found by chance more easily
SMALL = 64  # whole numbers: chosen: a larger one fits any factor
MOST_REST = 0.4  # share of an update that rounding may leave of a factor: chosen
ROUND_OFFS = 2.0  # of float32 in an update: definition: of the product with the rate, and of the sum


class _Update(NamedTuple):
    """The updates of one parameter on both sides, and the parameter before them; `noise` is the norm of their rounding
    errors."""

    target: Array
    golden: Array
    before: Array
    noise: float


def with_updates(
    findings: Sequence[Finding],
    roots: Sequence[tuple[int, Root]],
    before: Sequence[Finding],
    step: Optional[int],
    context: ReadContext,
) -> list[tuple[int, Root]]:
    """Return the roots of a step, those of parameters that agreed in the step `before`, number `step`, as one."""
    known = {_key(finding): finding for finding in before if is_parameter(finding.pair)}
    rows = {(row.pair.order, row.pair.slot): row for row in findings if is_parameter(row.pair)}
    members = [
        (at, rows[root.pair.order, root.slot])
        for at, (_, root) in enumerate(roots)
        if root.cause is Cause.GAP and (root.pair.order, root.slot) in rows
    ]
    members = [(at, row) for at, row in members if _agreed(known.get(_key(row)), row)]
    if not members:
        return [*roots]
    first, *others = members
    found = [*roots]
    clock, root = found[first[0]]
    found[first[0]] = (
        clock,
        replace(root, evidence=(*_evidence(findings, members, known, step, context), *root.evidence)),
    )
    for at, _ in others:
        clock, root = found[at]
        words = "its parameter differs by the same update, see {name}"
        follows = reason("update", words, name=first[1].pair.operator.name)
        found[at] = clock, replace(root, cause=Cause.PROPAGATED, evidence=(follows, *root.evidence))
    return found


def _key(finding: Finding) -> tuple[str, str]:
    return finding.pair.operator.name, finding.pair.slot


def _agreed(before: Optional[Finding], now: Finding) -> bool:
    """Whether a parameter agreed in the step before; running statistics have no update of an optimizer."""
    return (
        before is not None
        and before.verdict is Verdict.MATCH
        and now.pair.slot not in running_statistics(now.pair.operator)
    )


def _evidence(
    findings: Sequence[Finding],
    members: Sequence[tuple[int, Finding]],
    known: dict[tuple[str, str], Finding],
    step: Optional[int],
    context: ReadContext,
) -> list[Evidence]:
    parameters = {content_of(row) or id(row): row for row in findings if _key(row) in known and not is_output(row.pair)}
    differing = [row for row in parameters.values() if is_parameter(row.pair) and row.verdict is Verdict.DIVERGED]
    every = sum(_agreed(known[_key(row)], row) for row in parameters.values())
    count = max(len(members), len(differing))
    words = (
        "the optimizer's update after step {step} differs: {count} of {every} parameters that agreed before it differ"
    )
    if count == 1:
        words = "the optimizer's update of this parameter after step {step} differs; the other {rest} agree"
    reasons = [reason("update", words, step=step or 0, count=count, every=every, rest=every - 1)]
    reader = ValueReader(context)
    rows = [*(row for _, row in members), *differing]
    rows = [*{content_of(row) or id(row): row for row in rows}.values()][:MOST]
    updates = [update for row in rows if (update := _update(known[_key(row)], row, reader)) is not None]
    return [*reasons, *_relation(updates, loss_scale_of(findings))]


def _update(before: Finding, now: Finding, reader: ValueReader) -> Optional[_Update]:
    """Return the updates of a parameter; None if a value is not known."""

    earlier, later = reader.pair(before), reader.pair(now)
    if earlier is None or later is None or earlier[1].shape != later[1].shape or later[1].dtype.kind != "f":
        return None
    target, golden = ((b - a).reshape(-1) for a, b in zip(earlier, later))
    if not (np.isfinite(target).all() and np.isfinite(golden).all()):
        return None
    noise = ROUND_OFFS * SINGLE * float(np.linalg.norm(later[1]))
    return _Update(target, golden, earlier[1].reshape(-1), noise)


def _relation(updates: Sequence[_Update], scale: Optional[float]) -> list[Evidence]:
    """Return how the updates differ, by the first relation that holds for all of them."""

    if not updates:
        return []
    moved = [(np.linalg.norm(one.target) > 0, np.linalg.norm(one.golden) > 0) for one in updates]
    if all(there and not here for here, there in moved):
        words = "the golden updates these parameters, the target leaves them: their update was lost, or not called"
        return [reason("update", words)]
    if all(here and not there for here, there in moved):
        return [reason("update", "the golden leaves these parameters unchanged, the target updates them")]
    clear = _common([_factor(one.target, one.golden, one.noise) for one in updates])
    if clear:
        squares = sum(float(one.golden @ one.golden) for one in updates)
        return _factor_reasons(sum(float(one.target @ one.golden) for one in updates) / squares, scale)
    shrunk = _common([_factor(one.target - one.golden, one.before, one.noise) for one in updates])
    if shrunk:
        words = "the updates differ by {factor} times the parameter itself: another weight decay"
        return [reason("update", words, factor=f"{shrunk:.3g}")]
    both = [(np.linalg.norm(one.target), np.linalg.norm(one.golden), float(one.target @ one.golden)) for one in updates]
    cosines = [dot / (x * y) for x, y, dot in both if x and y]
    ratios = [float(x / y) for x, y, _ in both if y]
    if not cosines or not ratios:
        return []
    words = (
        "the updates of the target are {least} to {most} times the golden's in norm, with a cosine of {cosine} or more"
    )
    facts = {"least": f"{min(ratios):.3g}", "most": f"{max(ratios):.3g}", "cosine": f"{min(cosines):.4f}"}
    return [reason("update", words, **facts)]


def _factor(x: Array, y: Array, noise: float) -> Optional[tuple[float, float]]:
    """Return the factor of y that gives x and its uncertainty, if what it leaves is a small share of x or rounding."""

    length, size = float(np.linalg.norm(y)), float(np.linalg.norm(x))
    factor = float(x @ y) / length**2 if length else 0.0
    rest = float(np.linalg.norm(x - factor * y))
    rounding = noise * (1.0 + abs(factor))
    if not factor or rest > SAME * size + rounding or rest > MOST_REST * size:
        return None
    return factor, rounding / length


def _common(factors: Sequence[Optional[tuple[float, float]]]) -> float:
    """Return the median of factors that are one within their uncertainty; 0 if they are not, or one is unknown."""
    known = sorted(factor for factor in factors if factor is not None)
    if len(known) < len(factors):
        return 0.0
    middle = known[len(known) // 2][0]
    alike = all(abs(factor - middle) <= SAME * abs(middle) + 2.0 * unsure for factor, unsure in known)
    return middle if alike else 0.0


def _factor_reasons(factor: float, scale: Optional[float]) -> list[Evidence]:
    words = "the updates of the target are {factor} times the golden's, in the same direction"
    if factor < 0:
        words = "the updates of the target are {factor} times the golden's: in the opposite direction"
    reasons = [reason("update", words, factor=spelled_factor(factor, scale))]
    by_scale = loss_scale_words(factor, scale)
    return [*reasons, reason("update", by_scale, scale=f"{scale:g}")] if by_scale else reasons


def spelled_factor(factor: float, scale: Optional[float]) -> str:
    """Return a factor as a number, and as a quotient if it is one by the loss scale or by a small whole number:
    "0.000244 (1/4096)"."""
    small = round(1.0 / factor)
    for whole, within in (((scale or 0.0), SAME), (small if small <= SMALL else 0, SAME_WHOLE)):
        if whole > 2.0 and abs(factor * whole - 1.0) <= within:
            return f"{factor:.3g} (1/{whole:g})"
    return f"{factor:.3g}"


def loss_scale_words(factor: float, scale: Optional[float]) -> str:
    """Return what connects the factor of an update with the recorded loss scale {scale}; "" if nothing does."""
    if scale is None or scale < LEAST_SCALE or factor <= 0.0:
        return ""
    if abs(factor * scale - 1.0) <= SAME:
        return (
            "{scale} is the recorded loss scale: gradients were unscaled twice, or clipped before they were unscaled, "
            "and the learning rates may be equal"
        )
    if abs(factor / scale - 1.0) <= SAME:
        return "this factor is the recorded loss scale, {scale}: gradients were not unscaled"
    if 1.0 < factor * scale <= NEAR and factor * NEAR < 1.0:
        return "it is near 1/{scale}, the recorded loss scale: gradients may be clipped before they are unscaled"
    return ""


def loss_scale_of(findings: Sequence[Finding]) -> Optional[float]:
    """Return the gradient that enters the golden's first loss: 1, or the factor of a loss scaler; None if unknown."""
    calls = {
        row.pair.operator.call
        for row in findings
        if row.pair.operator.phase == "forward" and op_type_of(row.pair.operator).has("loss")
    } - {""}
    for row in findings if calls else ():
        operator = row.pair.operator
        if operator.phase == "backward" and operator.call in calls and not is_output(row.pair) and not operator.path:
            moments, recorded = row.measurement.moments, row.measurement.recorded(1)
            least, most = (
                (moments.golden.minimum, moments.golden.maximum)
                if moments is not None
                else (recorded.min, recorded.max)
                if recorded is not None
                else (None, None)
            )
            if least is not None and least == most:
                return float(least)
    return None
