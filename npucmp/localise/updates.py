"""What the steps before made of the parameters: an optimizer hands the noise of gradients on to what it updates.

An update by the sign of a gradient, which Adam's first ones are, is wrong as a whole for an element whose gradient is
no larger than its error e: a share of e of the elements, which rel_l2 sees as √e. A gradient that is nothing but
noise (of a key's bias, of a bias before a normalisation) moves its parameter at random, as far as any other. Running
statistics have no gradient: they average what their operator reads. An optimizer that computes something else moves
all of them: what is beyond these bounds in several parameters of a step explains no other of that step.
"""

from __future__ import annotations

import math
from typing import Optional, Sequence

from npucmp.judge.verdicts import FACTOR
from npucmp.localise.case import error_of, proven_size
from npucmp.localise.condition import scale_of
from npucmp.localise.movement import likely_error
from npucmp.localise.nodes import OperatorFindings, is_parameter, nodes_of
from npucmp.model import Finding, Verdict

UPDATE = 0.5  # of a parameter's size: no step of a network that trains changes one by more
GREW = 2.0  # times the error that a parameter had in the step before
SEVERAL, SHARE = 3, 0.1  # parameters of a step beyond their bounds, and their share of those that differ
QUANTILE = 0.95  # of the errors of the step before: what stands for a gradient that was not recorded


class Updates:
    """The parameters of one rank at one step, and their gradients there.

    faulty: an error was born by then, from which all that differs in the parameters afterwards descends.
    """

    def __init__(self, findings: Sequence[Finding] = (), faulty: bool = False) -> None:
        self.faulty = faulty
        self.are_first = not findings
        self._is_wrong = False
        self._errors: dict[tuple[str, str], float] = {}
        self._gradients: dict[tuple[str, str], float] = {}
        self._averaged: dict[tuple[str, str], float] = {}  # statistics: what their operator put in, per step
        known = sorted(error for error in map(_proven, findings) if error is not None and math.isfinite(error))
        self._usual = known[int(QUANTILE * (len(known) - 1))] if known else 0.0
        nodes = nodes_of(findings)
        # A gradient that was not recorded: noise, if there is any at all, or no gradient tells.
        unseen = 1.0 if known and (known[-1] or not any(node.is_gradient for node in nodes)) else 0.0
        backward = {node.operator.call: node for node in nodes if node.operator.phase == "backward"}
        by_shape: dict[tuple[int, ...], float] = {}
        for node in nodes:
            for finding in node.outputs if node.is_gradient else ():
                shape = _shape(finding)
                by_shape[shape] = max(by_shape.get(shape, 0.0), self._size(finding) or 0.0)
        for node in nodes:
            for finding in node.inputs:
                key = _key(finding)
                self._errors[key] = _proven(finding) or 0.0
                if finding.pair.slot in {f"input:{place}" for place in node.op.overwritten}:
                    self._averaged[key] = _averaged(node, finding)
                if not is_parameter(finding.pair):  # nor does a graph always say what is one
                    self._gradients[key] = min(1.0, by_shape.get(_shape(finding), 0.0))
                    continue
                error = self._gradient(finding, backward.get(node.operator.call))
                if error is None and node.op.has("contracts") and len(_shape(finding)) == 1:
                    error = unseen  # of a bias, which need not have any gradient but noise
                error = by_shape.get(_shape(finding)) if error is None else error
                if error is not None:
                    self._gradients[key] = max(error, self._gradients.get(key, 0.0))

    def hold(self, findings: Sequence[Finding]) -> None:
        """Takes in the parameters of the step itself: whether the update was another one on this side."""
        self._is_wrong = False  # whatever was held before
        differing = [one for one in findings if is_parameter(one.pair) and one.verdict is Verdict.DIVERGED]
        beyond = sum(0.0 < self.bound(one) < proven_size(one) for one in differing)
        self._is_wrong = beyond >= max(SEVERAL, SHARE * len(differing))

    def bound(self, finding: Finding) -> float:
        """How large the steps before may have made the error of a parameter; 0 for one that they did not have."""
        key = _key(finding)
        if key not in self._errors or self._is_wrong:
            return 0.0
        if key in self._averaged:
            return GREW * self._errors[key] + self._averaged[key]
        gradient = self._gradients.get(key, self._usual)
        return math.inf if gradient > 1.0 else GREW * self._errors[key] + UPDATE * math.sqrt(gradient)

    @property
    def unproven(self) -> float:
        """How large an error may be that came of the parameters, and that statistics do not prove."""
        return UPDATE * math.sqrt(self._usual)

    def _gradient(self, parameter: Finding, backward: Optional[OperatorFindings]) -> Optional[float]:
        """The error of a parameter's gradient: the largest of its shape that its backward wrote, whose outputs stand in
        another order than what the forward read."""
        fitting = [one for one in backward.outputs if _shape(one) == _shape(parameter)] if backward else []
        return max((size for size in map(self._size, fitting) if size is not None), default=None)

    def _size(self, finding: Finding) -> Optional[float]:
        """The error of a gradient. Statistics bound it from below only, and may agree by chance: at least as usual."""
        proven, statistics = _proven(finding), finding.measurement.bound is not None
        return max(proven, self._usual) if proven is not None and statistics else proven


def _averaged(node: OperatorFindings, statistic: Finding) -> float:
    """How far a running statistic may be off by the error of what it averages: a mean may be much smaller than that."""
    read = [finding for finding in node.inputs if not is_parameter(finding.pair)]
    rms = scale_of(statistic).rms
    errors = [FACTOR * (_proven(one) or 0.0) * scale_of(one).rms for one in read]
    return max(errors, default=0.0) / rms if rms else math.inf


def _proven(finding: Finding) -> Optional[float]:
    """The error as far as it is proven, and of statistics, which bound it from below, what they make likely; None if
    nothing is known."""
    bound = finding.measurement.bound
    if bound is not None:
        bound = max(bound, likely_error(finding) or 0.0)
    known = finding.error is not None and not math.isnan(finding.error)
    return bound if bound is not None and not known else error_of(finding)


def _key(finding: Finding) -> "tuple[str, str]":
    return finding.pair.operator.name, finding.pair.slot


def _shape(finding: Finding) -> "tuple[int, ...]":
    return finding.pair.golden.shape if finding.pair.golden is not None else ()
