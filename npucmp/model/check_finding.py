"""The result of `npucmp check`: symptoms of a run, the decision of each rule, and the table of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional

from npucmp.model.cause import Root
from npucmp.model.dump import Operator, Run
from npucmp.model.result import HasSteps, Result

SEVERITIES = ("hint", "warning", "error")


class Symptom(NamedTuple):
    """A finding of one rule in one rank; one row of health.csv.

    place    1 for the worst; step is the dump's number, None if no single step is meant
    operator of the finding, None for the run as a whole; `parameter` is its name, "" if it is not one
    order    of the operator in its step, -1 for the run as a whole
    places   number of findings merged into this one; `also` are the names of the others
    follows  place of the symptom that explains it, 0 if none does
    """

    place: int
    severity: str
    rule: str
    because: str
    remedy: str
    says: str = ""
    step: Optional[int] = None
    rank: Optional[int] = None
    operator: Optional[Operator] = None
    slot: str = ""
    parameter: str = ""
    order: int = -1
    places: int = 1
    also: tuple[str, ...] = ()
    value: Optional[float] = None
    limit: Optional[float] = None
    unit: str = ""
    follows: int = 0

    @property
    def where(self) -> str:
        """The name of the parameter or operator."""
        return self.parameter or (self.operator.name if self.operator is not None else "")


class RuleDecision(NamedTuple):
    """The status of one rule; one row of checks.csv.

    decided  "yes", "in part" (only some ranks, or some tensors could not be read), "no"; why_not has the details
    """

    rule: str
    severity: str
    decided: str
    why_not: str = ""
    looked_at: int = 0
    found: int = 0
    limit: Optional[float] = None
    limit_from: str = "default"
    source: str = ""
    failed: bool = False

    @property
    def group(self) -> str:
        return self.rule.partition(".")[0]


class RuleWords(NamedTuple):
    """A rule in the list of all rules."""

    name: str
    severity: str
    limit: Optional[float]
    needs: str
    says: str
    off: bool


class ParameterRow(NamedTuple):
    """A parameter in one step; one row of parameters.csv. Unknown numbers are None.

    step            that of the weight; the update leads from it to the next dumped step
    update_cosine   of the update with minus the gradient; same_bits_as: parameters with the same bits in all steps
    """

    parameter: str
    shape: tuple[int, ...]
    dtype: str
    trainable: Optional[bool]
    rms: Optional[float]
    max_abs: Optional[float]
    gain: Optional[float]
    zeros: Optional[float]
    grad_rms: Optional[float]
    grad_over_weight: Optional[float]
    update_ratio: Optional[float]
    update_cosine: Optional[float]
    same_bits_as: str
    step: Optional[int]
    rank: Optional[int]
    order: int


class Spread(NamedTuple):
    """The magnitude of an operator's output; a point of the page's drawing along the network."""

    operator: Operator
    step: Optional[int]
    rank: Optional[int]
    rms: Optional[float]


class StepFigures(NamedTuple):
    """The figures of a tensor in one step, over its finite elements; None if unknown.

    name, slot  operator and slot, or a parameter with "" or "gradient"
    kind        "parameter", "gradient" or "activation"
    """

    name: str
    slot: str
    kind: str
    step: Optional[int]
    rank: Optional[int]
    norm: Optional[float]
    mean: Optional[float]
    minimum: Optional[float]
    maximum: Optional[float]


class RunNetwork(NamedTuple):
    """The operators of one step and rank, and (producer, consumer) as their indices."""

    step: Optional[int]
    rank: Optional[int]
    operators: tuple[Operator, ...]
    edges: tuple[tuple[int, int], ...]


class LoggedCurve(NamedTuple):
    """A logged training curve, thinned without losing a peak; values may be NaN or infinite."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class CheckResult(HasSteps, Result):
    """The result of `npucmp check`; paths are the dump.

    unreadable  tensors that could not be read, with their reason; `training`, `starts` as in health/facts.py
    fail_on     the least severity that makes the run unhealthy
    met         the word of --until that a finding met, which also makes it unhealthy; "" if none did
    measured    figures of tensors, if there are several steps; `unmeasured`: tensors of a step that are left out;
                `network`: the first step of the first rank
    """

    command = "check"

    runs: tuple[Run, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    decisions: tuple[RuleDecision, ...] = ()
    parameters: tuple[ParameterRow, ...] = ()
    spreads: tuple[Spread, ...] = ()
    unreadable: tuple[str, ...] = ()
    tensors: int = 0
    training: bool = False
    starts: str = "unknown"
    fail_on: str = "warning"
    curves: tuple[LoggedCurve, ...] = ()
    met: str = ""
    measured: tuple[StepFigures, ...] = ()
    unmeasured: int = 0
    network: Optional[RunNetwork] = None

    @property
    def path(self) -> str:
        return self.paths[0]

    @property
    def roots(self) -> tuple[Root, ...]:
        return ()

    @property
    def failing(self) -> tuple[Symptom, ...]:
        least = SEVERITIES.index(self.fail_on)
        return tuple(one for one in self.symptoms if SEVERITIES.index(one.severity) >= least)

    @property
    def differs(self) -> bool:
        return bool(self.failing or self.met)

    @property
    def is_decided(self) -> bool:
        """Whether at least one rule decided, no rule failed, and all tensors were read."""
        if self.broken or self.unreadable or any(one.failed for one in self.decisions):
            return False
        return any(one.decided == "yes" for one in self.decisions)
