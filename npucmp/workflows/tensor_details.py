"""Select the diverging tensors that are read a second time (measure/error_map.py): tensors of suspects by place,
then others in order of execution; at most MOST tensors, with at most BYTES in total on both sides."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple, Optional, TypeVar

from npucmp.dump.context import ReadContext
from npucmp.measure.error_map import look
from npucmp.measure.executor import default_jobs, workers
from npucmp.measure.pairs import payload_bytes
from npucmp.model import Cause, Comparison, Finding, Look, Report, StoredComparisons, map_comparisons
from npucmp.model.roles import is_output
from npucmp.workflows.select_runs import RunSelection

AnyReport = TypeVar("AnyReport", bound=Report)
MOST = 64
FEWEST = 4  # candidates of each step and rank, if there are many; further ones are rarely selected
BYTES = 256 << 20


class _Candidate(NamedTuple):
    """A tensor that diverged; candidates are sorted by `first`."""

    first: tuple[bool, int, bool, int, int, str]
    step: Optional[int]
    rank: Optional[int]
    place: int
    cause: str
    run: int
    finding: Finding


def with_looks(report: AnyReport, choice: RunSelection, context: ReadContext, vendor: bool = False) -> AnyReport:
    """Return a report with as many looks as fit; if a tensor is too large, smaller ones after it may still be read. If
    the user interrupts the reading (Ctrl-C), the report has no looks. vendor: also compare outputs of suspects by the
    vendor's rules."""
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
        pool = workers(choice.jobs or default_jobs())
        found = [*pool.map(partial(_looked, context=context, vendor=vendor), chosen, _failed, _weight)]
    except KeyboardInterrupt:
        return report
    return replace(report, looks=tuple(one for one in found if one is not None))


def _candidates(report: Report) -> chain[_Candidate]:
    """Return the candidates of all steps and ranks with differing values, found by the processes that have the
    comparisons."""
    comparisons = report.comparisons
    numbers, most = None, MOST
    if isinstance(comparisons, StoredComparisons):
        numbers = [at for at, tally in enumerate(comparisons.tallies) if tally.shown]
        most = max(FEWEST, MOST // max(1, len(numbers)))
    return chain.from_iterable(map_comparisons(comparisons, partial(_of, most), _none, numbers))


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


def _failed(one: _Candidate, because: str) -> Optional[Look]:
    return None


def _weight(one: _Candidate) -> int:
    return payload_bytes(one.finding.pair)
