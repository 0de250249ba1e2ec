"""Which tensors that diverged get a second look (measure/look.py): those of suspects first, by place, then the others
in the order of execution; at most MOST, of BYTES together on both sides, whatever the dumps hold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple, Optional, TypeVar

from npucmp.dump.context import ReadContext
from npucmp.measure.executor import default_jobs, workers
from npucmp.measure.look import look
from npucmp.measure.pairs import payload_bytes
from npucmp.model import Cause, Comparison, Finding, Look, Report, StoredComparisons, each
from npucmp.model.roles import is_output
from npucmp.workflows.runs import Choice

AnyReport = TypeVar("AnyReport", bound=Report)
MOST = 64
FEWEST = 4  # of each step and rank, where there are many: the others hardly come into question
BYTES = 256 << 20


class _Candidate(NamedTuple):
    """A tensor that diverged; `first` tells who comes before whom."""

    first: tuple[bool, int, bool, int, int, str]
    step: Optional[int]
    rank: Optional[int]
    place: int
    cause: str
    run: int
    finding: Finding


def with_looks(report: AnyReport, choice: Choice, context: ReadContext, vendor: bool = False) -> AnyReport:
    """A report with as many looks as fit; a tensor that is too large leaves room for smaller ones behind it. Whoever
    does not want to wait for them (Ctrl-C) has the report without. vendor: outputs of suspects are held against the
    vendor's rules too."""
    if report.partial:
        return report
    chosen, left = [], BYTES
    try:
        for one in nsmallest(MOST, _candidates(report)):
            size = payload_bytes(one.finding.pair)
            if size <= left:
                chosen.append(one)
                left -= size
        if not chosen:
            return report
        crew = workers(choice.jobs or default_jobs())
        found = [*crew.map(partial(_looked, context=context, vendor=vendor), chosen, _lost, _weight)]
    except KeyboardInterrupt:
        return report
    return replace(report, looks=tuple(one for one in found if one is not None))


def _candidates(report: Report) -> chain[_Candidate]:
    """Those of all steps and ranks in which values differ, made where these lie."""
    comparisons = report.comparisons
    numbers, most = None, MOST
    if isinstance(comparisons, StoredComparisons):
        numbers = [at for at, tally in enumerate(comparisons.tallies) if tally.shown]
        most = max(FEWEST, MOST // max(1, len(numbers)))
    return chain.from_iterable(each(comparisons, partial(_of, most), _none, numbers))


def _of(most: int, run: int, one: Comparison) -> list[_Candidate]:
    roots = {root.pair.order: root for root in one.roots}
    found = []
    for finding in one.findings:
        if finding.can_be_shown:
            order, slot = finding.pair.order, finding.pair.slot
            root = roots.get(order)
            passed = root is None or root.cause is Cause.PROPAGATED
            place, cause = (0, "") if root is None else (root.place, root.cause.value)
            first = passed, 0 if passed else place, root is None or root.slot != slot, run, order, slot
            found.append(_Candidate(first, one.step, one.rank, place, cause, run, finding))
    return nsmallest(most, found)


def _none(run: int, because: str) -> list[_Candidate]:
    return []


def _looked(one: _Candidate, context: ReadContext, vendor: bool) -> Optional[Look]:
    suspected = one.cause not in ("", Cause.PROPAGATED.value) and is_output(one.finding.pair)
    found = look(one.finding, context, vendor and suspected)
    if found is None:
        return None
    return found._replace(run=one.run, step=one.step, rank=one.rank, place=one.place, cause=one.cause)


def _lost(one: _Candidate, because: str) -> Optional[Look]:
    return None


def _weight(one: _Candidate) -> int:
    return payload_bytes(one.finding.pair)
