"""Which tensors that diverged get a second look (measure/look.py): those of suspects first, by place, then the others
in the order of execution; at most MOST, of BYTES together on both sides, whatever the dumps hold."""

from __future__ import annotations

from functools import partial
from heapq import nsmallest
from typing import Iterator, NamedTuple, Optional, Sequence

from npucmp.dump.context import ReadContext
from npucmp.measure.executor import workers
from npucmp.measure.look import look
from npucmp.measure.pairs import payload_bytes
from npucmp.model import Cause, Comparison, Finding, Look, Verdict

MOST = 64
BYTES = 256 << 20
LOOKED_AT = (Verdict.DIVERGED, Verdict.NONFINITE)


class _Candidate(NamedTuple):
    """`first` tells who comes before whom."""

    first: "tuple[bool, int, bool, int, int, str]"
    run: int
    finding: Finding


def looks_of(comparisons: "Sequence[Comparison]", jobs: int, context: ReadContext) -> "tuple[Look, ...]":
    """As many as fit; one that is too large leaves room for smaller ones behind it."""
    chosen, left = [], BYTES
    for one in nsmallest(MOST, _candidates(comparisons)):
        size = payload_bytes(one.finding.pair)
        if size <= left:
            chosen.append(one)
            left -= size
    found = workers(jobs).map(partial(_looked, context=context), chosen, _lost, _weight)
    return tuple(one for one in found if one is not None)


def _candidates(comparisons: "Sequence[Comparison]") -> "Iterator[_Candidate]":
    for run, one in enumerate(comparisons):
        roots = {root.pair.order: root for root in one.roots}
        for finding in one.findings:
            if finding.verdict in LOOKED_AT and finding.measurement.moments is not None:
                order, slot = finding.pair.order, finding.pair.slot
                root = roots.get(order)
                passed = root is None or root.cause is Cause.PROPAGATED
                place = 0 if root is None or passed else root.place
                first = passed, place, root is None or root.slot != slot, run, order, slot
                yield _Candidate(first, run, finding)


def _looked(one: _Candidate, context: ReadContext) -> Optional[Look]:
    return look(one.finding, one.run, context)


def _lost(one: _Candidate, because: str) -> Optional[Look]:
    return None


def _weight(one: _Candidate) -> int:
    return payload_bytes(one.finding.pair)
