"""Find tensors of the target that operators read in slices: queries, keys and values of one product. Cutting a tensor
is a view, which most dumps do not record; the hashes of the slices add up to the hash of the whole."""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import reduce
from itertools import combinations
from typing import Iterator, NamedTuple, Sequence

from npucmp.flow.contents import target_content_of
from npucmp.model import Finding, Side
from npucmp.model.moments import add_hashes
from npucmp.model.roles import is_output, is_parameter

NEXT = 8  # tensors without a writer: work: slices are searched among the next ones
MOST = 4  # slices of a tensor: definition: queries, keys and values; the four gates of an LSTM


class Unwritten(NamedTuple):
    """A tensor that an operator of the target reads but no operator wrote."""

    order: int
    elements: int
    side: Side


def unwritten(findings: Sequence[Finding]) -> list[Unwritten]:
    """The tensors of the target that no operator wrote, each at its first read, in merged graph order."""
    written: set[int] = set()
    for finding in findings:
        if finding.pair.target is not None and is_output(finding.pair):
            written.add(target_content_of(finding))
    return [*_first_reads(findings, written)]


def _first_reads(findings: Sequence[Finding], known: set[int]) -> Iterator[Unwritten]:
    for finding in findings:
        pair, moments = finding.pair, finding.measurement.moments
        if pair.target is None or moments is None or is_output(pair) or is_parameter(pair):
            continue
        content = target_content_of(finding)
        if content and content not in known:
            known.add(content)
            yield Unwritten(pair.order, math.prod(pair.target.shape), moments.target)


def is_read_in_slices(written: Finding, reads: Sequence[Unwritten]) -> bool:
    """Whether tensors that later operators read are the slices of a tensor and together cover it."""
    pair, moments = written.pair, written.measurement.moments
    if pair.target is None or moments is None:
        return False
    elements, whole = math.prod(pair.target.shape), moments.target
    first = bisect_right(reads, (pair.order, math.inf))
    behind = [one for one in reads[first : first + NEXT] if one.elements < elements]
    return any(
        sum(one.elements for one in some) == elements and _are_whole(whole, [one.side for one in some])
        for count in range(2, min(MOST, len(behind)) + 1)
        for some in combinations(behind, count)
    )


def _are_whole(whole: Side, parts: Sequence[Side]) -> bool:
    """Whether the parts together hold the elements of the whole."""
    return whole.squares > 0 and reduce(add_hashes, (one.hash for one in parts)) == whole.hash
