"""The explanations of a network by hand, with the parts from which they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterable

import numpy as np

from npucmp.flow.edges import Edges
from npucmp.flow.operators import OperatorFindings, nodes_of, number_findings
from npucmp.judge.tolerance import Limit
from npucmp.localise.explanations import Explanations
from npucmp.localise.intervals import Intervals
from npucmp.localise.parameter_drift import Updates
from npucmp.localise.root_cause import OwnError
from npucmp.localise.rules import Rulebook
from npucmp.localise.seen_errors import SeenErrors
from npucmp.localise.sources import Sources, TensorSource
from npucmp.model import Finding
from tests.localise.networks import network, paired


@dataclass
class Explained:
    findings: list[Finding]
    nodes: list[OperatorFindings]
    sources: Sources
    seen: SeenErrors
    intervals: Intervals
    explanations: Explanations

    def of(self, at: int = -1, output: int = 0) -> Limit | None:
        """The explanation of an output of an operator."""
        node = self.nodes[at]
        return self.explanations.of(node, node.outputs[output], self.intervals.reads(node))

    def own_error(self, at: int = -1) -> OwnError | None:
        node = self.nodes[at]
        return self.explanations.own_error(node, self.intervals.reads(node))

    def excuse_all(self, at: int = -1) -> None:
        """Excuse the outputs of an operator that diverged."""
        node = self.nodes[at]
        diverged = [one for one in node.outputs if one.verdict.value == "diverged"]
        self.explanations.excuse_all(node, diverged, self.intervals.reads(node))

    def learn(self, finding: Finding, **known: bool) -> None:
        self.sources.learn(TensorSource(finding, **{"tainted": False, **known}))


def unchanged(findings: list[Finding]) -> Iterable[Finding]:
    return findings


def explained(
    *lines: str,
    by_round_off: bool = True,
    skip: Iterable[str] = (),
    share: float = 1.0,
    change: Callable[[list[Finding]], Iterable[Finding]] = unchanged,
    **values: np.ndarray,
) -> Explained:
    """The explanations of the operators of these lines, whose findings may be changed first."""
    findings = number_findings([*change(network(*lines, **values))])
    rules, sources, seen = Rulebook(skip), Sources(findings, Edges(findings)), SeenErrors()
    intervals = Intervals(rules, by_round_off, sources, seen, Updates())
    explanations = Explanations(rules, by_round_off, sources, seen, intervals, share)
    return Explained(findings, nodes_of(findings), sources, seen, intervals, explanations)


def argued(findings: list[Finding]) -> list[Finding]:
    """The last operator with other arguments in both runs."""
    order = findings[-1].pair.order
    return [_argued(one) if one.pair.order == order else one for one in findings]


def _argued(one: Finding) -> Finding:
    target, golden = (
        operator._replace(arguments={"input:9": value})
        for operator, value in ((one.pair.target_op, 1), (one.pair.golden_op, 2))
    )
    return paired(one, target_op=target, golden_op=golden)
