"""Find the function of the undumped code at each GAP, on both sides.

In the forward pass, it computes an input from earlier outputs. In the backward pass, it relates a gradient to the
gradients from its consumers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.formats import calls_of
from npucmp.dump.limits import ReadContext
from npucmp.errors import MissingExtra, NpucmpError
from npucmp.localise.evidence import reason
from npucmp.measure.executor import default_jobs
from npucmp.model import Cause, Comparison, Edge, EdgeVerdict, Evidence, Gap, Report, Root, Run
from npucmp.recompute.engine import OperatorEngine
from npucmp.recompute.every_operator import JOBS
from npucmp.recompute.run import link_operators, with_edges
from npucmp.recompute.task import ReplaySettings, tasks_of
from npucmp.recompute.workflow import supported


class UndumpedCode(NamedTuple):
    """The undumped code before some inputs of one run."""

    names: Mapping[int, str]
    gaps: Mapping[tuple[int, str], Gap]
    edges: Mapping[tuple[int, str], Edge]

    def function(self, place: tuple[int, str]) -> str:
        """Return the function before an input in words, "" if unknown."""
        gap = self.gaps.get(place)
        if gap is None:
            return ""
        others = f" (or {', '.join(gap.others)})" if gap.others else ""
        return f"{gap.function}{others} of {self._names(order for order, _ in gap.writers)}"

    def broken_consumers(self, place: tuple[int, str]) -> tuple[str, str, str]:
        """Return the consumers whose sum a BROKEN gradient should be, their functions, and the explanation; else empty
        texts."""
        edge = self.edges.get(place)
        if edge is None or edge.verdict is not EdgeVerdict.BROKEN:
            return "", "", ""
        via = "" if edge.via == "bit-equal" else f" ({edge.via})"
        return self._names(iter(edge.consumers)), via, edge.explanation

    def _names(self, orders: Iterator[int]) -> str:
        return " and ".join(self.names[order] for order in orders)


def with_gap_words(report: Report, context: ReadContext, jobs: Optional[int] = None) -> Report:
    """Return the report with the functions at its gaps in both runs; notes name missing packages."""
    missing = OperatorEngine().missing()
    notes = [str(MissingExtra(missing, "--recompute all: recomputing more operators"))] if missing else []
    try:
        supported()
        comparisons = [
            _with_reasons(one, gap_reasons(one, context, jobs or min(default_jobs(), JOBS)))
            for one in report.comparisons
        ]
    except NpucmpError as error:
        return replace(report, unreplayed=(*notes, str(error)))
    except KeyboardInterrupt:
        return replace(
            report, unreplayed=(*notes, "interrupted: the functions at gaps were not determined"), partial=True
        )
    return replace(report, comparisons=tuple(comparisons), unreplayed=tuple(notes))


def _with_reasons(one: Comparison, between: Mapping[int, tuple[Evidence, ...]]) -> Comparison:
    if not between:
        return one
    roots = [replace(root, evidence=(*between.get(at, ()), *root.evidence)) for at, root in enumerate(one.roots)]
    return replace(one, roots=tuple(roots))


def gap_reasons(one: Comparison, context: ReadContext, jobs: int) -> dict[int, tuple[Evidence, ...]]:
    """Return the evidence for the gaps among the roots, by their place in the list of roots."""
    gaps = {at: root for at, root in enumerate(one.roots) if root.cause is Cause.GAP}
    target = _undumped_code(one.target, [_gap_input(root, "target") for root in gaps.values()], context, jobs)
    golden = _undumped_code(one.golden, [_gap_input(root, "golden") for root in gaps.values()], context, jobs)
    return {at: tuple(_reasons(root, target, golden)) for at, root in gaps.items()}


def _gap_input(root: Root, side: str) -> Optional[tuple[int, str]]:
    operator, tensor = getattr(root.pair, f"{side}_op"), getattr(root.pair, side)
    return None if operator is None or tensor is None else (operator.order, tensor.slot)


def _reasons(root: Root, target: UndumpedCode, golden: UndumpedCode) -> Iterator[Evidence]:
    own, other = _gap_input(root, "target"), _gap_input(root, "golden")
    ours = target.function(own) if own is not None else ""
    theirs = golden.function(other) if other is not None else ""
    if ours and theirs and ours != theirs:
        yield reason("gap", "it reads {ours} in the target, {theirs} in the golden", ours=ours, theirs=theirs)
    elif ours:
        yield reason("gap", "it reads {ours}", ours=ours)
    elif theirs:
        yield reason("gap", "it reads {theirs} in the golden, an unknown function in the target", theirs=theirs)
    consumers, via, what = target.broken_consumers(own) if own is not None else ("", "", "")
    if consumers:
        words = "its gradient differs from the gradient of {consumers}{via}" + (": {what}" if what else "")
        yield reason("gap", words, consumers=consumers, via=via, what=what)


def _undumped_code(
    run: Run, places: Sequence[Optional[tuple[int, str]]], context: ReadContext, jobs: int
) -> UndumpedCode:
    wanted = {place for place in places if place is not None}
    names = {operator.order: operator.name for operator in run.operators}
    if not wanted:
        return UndumpedCode(names, {}, {})
    settings = ReplaySettings()
    links, gaps = link_operators(tasks_of(run, calls_of(run, context)), context, settings, jobs)
    gap_edges = [edge for edge in links.edges(gaps) if (edge.task.operator.order, edge.slot) in wanted]
    edges = with_edges([], gap_edges, OperatorEngine(), context, settings, jobs) if gap_edges else ()
    return UndumpedCode(
        names,
        {(gap.order, gap.slot): gap for gap in gaps if gap.function and (gap.order, gap.slot) in wanted},
        {(edge.order, edge.slot): edge for edge in edges if isinstance(edge, Edge)},
    )
