"""What the steps before made of the parameters: an optimizer hands the noise of gradients on to what it updates.

An update by the sign of a gradient, which Adam's first ones are, is wrong as a whole for an element whose gradient is
no larger than its error e: a share of e of the elements, which rel_l2 sees as √e. A gradient that is nothing but
noise (of a key's bias, of a bias before a normalisation) moves its parameter at random, as far as any other: no farther
than a step of the optimizer, which the golden shows, and not by one common factor. A single element may have such a
sign in any tensor that is likely to have one. Running statistics have no gradient: they average what their operator
reads.

Calls that share a parameter, as the steps of a recurrent layer do, have one gradient together: the sum of theirs.

An optimizer that computes something else moves all of them: what is beyond these bounds in several parameters of a
step explains no other of that step. Two more things show it, in parameters that are each within their bounds. Signs
of noise are few: rel_l2 sees a share e of the elements as √e, the mean of |x - y| sees it as e. So does that of an
update that is proportional to its gradient. An error whose mean is farther beyond e of a step is none of noise, in a
single parameter too. Evidence: at most 0.37 of the bound in 1,546 parameters of clean pairs of the corpus, 1.8 to 2e5
in the first parameters of 13 wrong optimizers. And noise scales no parameter: a factor g of K elements with the error e
is g √K / e of its standard deviations away from none, and parameters that all have one of the same sign are evidence
together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple, Optional, Sequence

from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings, nodes_of
from npucmp.judge.precision import SINGLE, round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import scale_of
from npucmp.localise.effective_precision import float_types, usual_precision
from npucmp.localise.rule_context import (
    FEW,
    FEW_FLIPS,
    FLIPPING,
    TOGETHER,
    WHOLE,
    deviations_of,
    error_of,
    gain_of,
    proven_size,
)
from npucmp.localise.seen_errors import QUANTILE
from npucmp.localise.stat_shift import likely_error
from npucmp.model import Finding, Statistics, Verdict
from npucmp.model.dtypes import MOST
from npucmp.model.roles import is_parameter

UPDATE = 0.5  # of a parameter's size: chosen: no step of a network that trains changes one by more, not measured
GREW = 2.0  # times the error of the step before: chosen: not measured
SEVERAL = 3  # parameters of a step: chosen: an optimizer that is wrong moves as many beyond their bounds, not measured
# probability: chosen: that an error of independent elements lies along the values, cos² ≥ 1 - p^(2/(n-1)) of n elements
CHANCE = 1e-3
SHARE = 0.1  # share of the parameters that differ: chosen: the same, not measured
# times the golden's step: chosen: a wrong update is off by two, and a figure may see a quarter, not measured
REACH = 8.0


class Updates:
    """The parameters of one rank at one step, and their gradients there.

    faulty: an error was born by then, from which all that differs in the parameters afterwards descends.
    """

    def __init__(self, findings: Sequence[Finding] = (), faulty: bool = False) -> None:
        self.faulty = faulty
        self.are_first = not findings
        self._is_wrong = False
        self.factor = 0.0  # by which all parameters of the step itself are off together, minus 1
        self._errors: dict[tuple[str, str], float] = {}
        self._gradients: dict[tuple[str, str], float] = {}
        self._averaged: dict[tuple[str, str], float] = {}  # statistics: what their operator put in, per step, as rms
        self._figures: dict[tuple[str, str], Optional[_Figures]] = {}
        self._usual_step = 0.0  # of an element, as most parameters of the golden make it
        known = sorted(error for error in map(_proven, findings) if error is not None and math.isfinite(error))
        self._usual = known[int(QUANTILE * (len(known) - 1))] if known else 0.0
        # Operators that were not recorded round as well, to the coarsest type that a good part of the run has.
        self._unrecorded = max(self._usual, usual_precision(findings).round_off) if self._usual else 0.0
        nodes = nodes_of(findings)
        # A gradient that was not recorded: noise, if there is any at all, or no gradient tells.
        unseen = 1.0 if known and (known[-1] or not any(node.is_gradient for node in nodes)) else 0.0
        backward = {node.operator.call: node for node in nodes if node.operator.phase == "backward"}
        by_shape: dict[tuple[int, ...], float] = {}
        for node in nodes:
            for finding in node.outputs if node.is_gradient else ():
                shape = _shape(finding)
                by_shape[shape] = max(by_shape.get(shape, 0.0), self._size(finding) or 0.0)
        shared: dict[int, list[tuple[str, str]]] = defaultdict(list)  # by content
        for node in nodes:
            for finding in node.inputs:
                key = _key(finding)
                self._errors[key] = _proven(finding) or 0.0
                self._figures[key] = _figures(finding)
                if finding.pair.slot in {f"input:{place}" for place in node.op.overwritten}:
                    self._averaged[key] = _averaged(node)
                if not is_parameter(finding.pair):  # nor does a graph always say what is one
                    self._gradients[key] = min(1.0, by_shape.get(_shape(finding), 0.0))
                    continue
                error = self._gradient(finding, backward.get(node.operator.call))
                if error is None and node.op.has("contracts") and len(_shape(finding)) == 1:
                    error = unseen  # of a bias, which need not have any gradient but noise
                error = by_shape.get(_shape(finding)) if error is None else error
                if error is not None:
                    self._gradients[key] = max(error, self._gradients.get(key, 0.0))
                    if content := content_of(finding):
                        shared[content].append(key)
        for keys in shared.values():  # an optimizer adds up the gradients of all calls that read one parameter
            largest = max(self._gradients[key] for key in keys)
            self._gradients.update(dict.fromkeys(keys, largest))

    def hold(self, findings: Sequence[Finding]) -> None:
        """Takes in the parameters of the step itself: whether the update was another one on this side."""
        self._is_wrong = False  # whatever was held before
        moved = sorted(step for step in map(self._extremes_moved, findings) if step is not None)
        self._usual_step = moved[len(moved) // 2] if moved else 0.0
        parameters = [one for one in findings if is_parameter(one.pair)]
        self.factor = _common_factor([one for one in parameters if _key(one) not in self._averaged])
        differing = [one for one in parameters if one.verdict is Verdict.DIVERGED]
        beyond = sum(0.0 < self.bound(one) < proven_size(one) for one in differing)
        spread = sum(self._is_spread(one, FEW_FLIPS if self._may_flip(one) else 0.0) for one in differing)
        self._is_wrong = max(beyond, spread) >= max(SEVERAL, SHARE * len(differing))

    def _is_spread(self, finding: Finding, flips: float = 0.0) -> bool:
        """Whether the elements of a parameter are farther off on average than the error e of its gradient moves them:
        by a share e of a step. A sign that changes moves an element by more, but a share e of the signs change; `flips`
        elements are off by a step besides."""
        key, moments = _key(finding), finding.measurement.moments
        gradient, rms, step = self._gradient_of(key), scale_of(finding).rms, self._step(finding)
        if key not in self._errors or key in self._averaged or gradient >= 1.0 or not step:
            return False
        if moments is None or moments.mismatched or not moments.compared:
            return False
        moved = (FLIPPING * gradient + flips / moments.compared) * step
        return (
            moments.sum_abs / moments.compared > (moved + GREW * self._errors[key] + round_off_of(finding.pair)) * rms
        )

    def _may_flip(self, finding: Finding) -> bool:
        """Whether a sign of the gradient of a parameter is likely to change."""
        return FLIPPING * self._gradient_of(_key(finding)) * scale_of(finding).elements >= SHARE

    def _gradient_of(self, key: tuple[str, str]) -> float:
        """The error of the gradient of a parameter, as far as it is known."""
        return self._gradients.get(key, self._unrecorded)

    def bound(self, finding: Finding) -> float:
        """How large the steps before may have made the error of a parameter; 0 for one that they did not have."""
        key = _key(finding)
        if key not in self._errors or self._is_wrong or self.factor:
            return 0.0
        if key in self._averaged:
            rms = scale_of(finding).rms
            averaged = self._averaged[key] / rms if rms else math.inf if self._averaged[key] else 0.0
            return GREW * self._errors[key] + averaged
        gradient = self._gradient_of(key)
        update = math.inf if gradient > 1.0 else max(UPDATE * math.sqrt(gradient), self._one_sign(finding))
        if gradient >= 1.0:  # noise, or for all that is known
            update = min(update, REACH * self._step(finding))
        if gradient >= 1.0 and _is_scaled(finding):
            update = min(update, UPDATE * math.sqrt(self._usual))
        if self._is_spread(finding, FEW_FLIPS):
            update = 0.0
        return GREW * self._errors[key] + max(update, self._rounding(finding))

    @property
    def unproven(self) -> float:
        """How large an error may be that came of the parameters, and that statistics do not prove."""
        return UPDATE * math.sqrt(self._usual)

    def _one_sign(self, finding: Finding) -> float:
        """The error that one element makes whose gradient has another sign: two steps of it, where one of
        ten such parameters has one."""
        elements = scale_of(finding).elements
        if not elements or not self._may_flip(finding):
            return 0.0
        return min(UPDATE, 2.0 * self._step(finding)) / math.sqrt(elements)

    def _rounding(self, finding: Finding) -> float:
        """One round-off of a parameter that the golden updated: the update rounds what it writes."""
        before, now = self._figures.get(_key(finding)), _figures(finding)
        return round_off_of(finding.pair) if before is not None and now is not None and before != now else 0.0

    def _step(self, finding: Finding) -> float:
        """How far one step of the optimizer moves a parameter, relative to its size: as far as the golden's figures
        show that it moved, or as most parameters did, whose gradients are no noise; infinity where nothing is known."""
        before, now = self._figures.get(_key(finding)), _figures(finding)
        if before is None or now is None or before.elements != now.elements or not now.norm:
            return math.inf
        apart = (
            now.minimum - before.minimum,
            now.maximum - before.maximum,
            now.norm - before.norm,
            (now.total - before.total) / math.sqrt(now.elements),
        )
        return max(self._usual_step, *map(abs, apart)) * math.sqrt(now.elements) / now.norm

    def _extremes_moved(self, finding: Finding) -> Optional[float]:
        """How far the extremes of the golden's parameter moved since the step before: about the step of one element."""
        before = self._figures.get(_key(finding)) if is_parameter(finding.pair) else None
        now = _figures(finding) if before is not None else None
        if before is None or now is None:
            return None
        return max(abs(now.minimum - before.minimum), abs(now.maximum - before.maximum))

    def _gradient(self, parameter: Finding, backward: Optional[OperatorFindings]) -> Optional[float]:
        """The error of a parameter's gradient: the largest of its shape that its backward wrote, whose outputs stand in
        another order than what the forward read."""
        fitting = [one for one in backward.outputs if _shape(one) == _shape(parameter)] if backward else []
        return max((size for size in map(self._size, fitting) if size is not None), default=None)

    def _size(self, finding: Finding) -> Optional[float]:
        """The error of a gradient. Statistics bound it from below only, and may agree by chance: at least as usual."""
        proven, statistics = _proven(finding), finding.measurement.bound is not None
        return max(proven, self._usual) if proven is not None and statistics else proven


class _Figures(NamedTuple):
    """The golden's figures of a parameter."""

    elements: int
    minimum: float
    maximum: float
    total: float
    norm: float


def _figures(finding: Finding) -> Optional[_Figures]:
    """Of values or recorded statistics; None where some are not known or not finite."""
    golden, moments = finding.pair.golden, finding.measurement.moments
    elements = math.prod(golden.shape) if golden is not None else 0
    if golden is None or not 0 < elements < MOST:
        return None
    if moments is not None:
        side = moments.golden
        found = _Figures(elements, side.minimum, side.maximum, side.total, math.sqrt(side.squares))
        return None if side.nan or side.inf else found
    recorded = finding.measurement.recorded(1)
    if recorded is None or None in recorded:
        return None
    most, least, mean, norm = (float(one or 0.0) for one in recorded)
    return _Figures(elements, least, most, mean * elements, norm) if math.isfinite(most + least + mean + norm) else None


def _is_scaled(finding: Finding) -> bool:
    """Whether one factor makes up the error of a parameter, as the noise of no gradient does: WHOLE of it, and of few
    elements more than a random direction has along the values but with probability CHANCE."""
    golden, moments = finding.pair.golden, finding.measurement.moments
    elements = math.prod(golden.shape) if golden is not None else 0
    if elements <= 2:
        return False
    if moments is not None:
        gain, by_chance = gain_of(finding), math.sqrt(1.0 - CHANCE ** (2.0 / (elements - 1)))
        return gain > -WHOLE and abs(gain) >= max(WHOLE, by_chance) * proven_size(finding) > 0.0
    x, y = (finding.measurement.recorded(side) or Statistics() for side in range(2))
    factors = [a / b - 1.0 for a, b in ((x.norm, y.norm), (x.max, y.max), (x.min, y.min)) if a is not None and b]
    close = len(factors) == 3 and max(factors) - min(factors) <= (1.0 - WHOLE) * abs(factors[0])
    return close and factors[0] > -WHOLE


def _common_factor(parameters: Sequence[Finding]) -> float:
    """The factor, minus 1, by which all parameters are off together; 0 where noise would give it or nothing is known.

    Only of parameters that have one type on both sides: a coarser one loses what an update changes by less.
    """
    found: dict[tuple[float, float], tuple[float, float]] = {}  # each tensor once
    for one in parameters:
        moments, kinds = one.measurement.moments, float_types(one.pair)
        if moments is None or moments.mismatched or moments.compared < FEW or len(kinds) != 1:
            continue
        if away := deviations_of(one):
            found[moments.xy, moments.yy] = gain_of(one), away
    if len(found) < SEVERAL:
        return 0.0
    factors, deviations = sorted(one for one, _ in found.values()), [one for _, one in found.values()]
    above, middle = sum(one > 0 for one in factors) / len(factors), factors[len(factors) // 2]
    is_noise = abs(sum(deviations)) < TOGETHER * math.sqrt(len(deviations)) or max(above, 1.0 - above) < WHOLE
    return 0.0 if is_noise or abs(middle) <= FACTOR * SINGLE else middle


def _averaged(node: OperatorFindings) -> float:
    """How far a running statistic may be off by the error of what it averages, as rms: a mean may be much smaller."""
    read = [finding for finding in node.inputs if not is_parameter(finding.pair)]
    return max((FACTOR * (_proven(one) or 0.0) * scale_of(one).rms for one in read), default=0.0)


def _proven(finding: Finding) -> Optional[float]:
    """The error as far as it is proven, and of statistics, which bound it from below, what they make likely; None if
    nothing is known."""
    bound = finding.measurement.bound
    if bound is not None:
        bound = max(bound, likely_error(finding) or 0.0)
    known = finding.error is not None and not math.isnan(finding.error)
    return bound if bound is not None and not known else error_of(finding)


def _key(finding: Finding) -> tuple[str, str]:
    return finding.pair.operator.name, finding.pair.slot


def _shape(finding: Finding) -> tuple[int, ...]:
    return finding.pair.golden.shape if finding.pair.golden is not None else ()
