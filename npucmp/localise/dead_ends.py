"""Find operators of the target alone whose outputs are unused, and tensors of the target that operators read in slices.

An output is unused if no operator reads it, whole or in slices, and no compared tensor holds it. It is not known
whether an operator with unused outputs, in the place of golden operators, computes what they compute.

Queries, keys and values of one product are read in slices. Cutting a tensor is a view, which most dumps do not record;
the hashes of the slices add up to the hash of the whole.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from functools import reduce
from itertools import combinations, groupby
from typing import AbstractSet, Iterator, NamedTuple, Sequence

from npucmp.dump.readers.names import file_name_of
from npucmp.flow.contents import target_content_of
from npucmp.localise.rule_context import SUM_ROUNDINGS
from npucmp.model import DECIDED, Finding, Side
from npucmp.model.dtypes import lookup
from npucmp.model.moments import add_hashes
from npucmp.model.optypes import is_gradient
from npucmp.model.roles import is_meaningless, is_output, is_parameter

NEXT_TENSORS = 8  # tensors without a writer: work: slices are searched among the next ones
MOST = 4  # slices of a tensor: definition: queries, keys and values; the four gates of an LSTM


class UnwrittenTensor(NamedTuple):
    """A tensor that an operator of the target reads but no operator wrote."""

    order: int
    elements: int
    side: Side


def unwritten_tensors(findings: Sequence[Finding]) -> list[UnwrittenTensor]:
    """The tensors of the target that no operator wrote, each at its first read, in merged graph order."""
    written: set[int] = set()
    for finding in findings:
        if finding.pair.target is not None and is_output(finding.pair):
            written.add(target_content_of(finding))
    return [*_first_reads(findings, written)]


def _first_reads(findings: Sequence[Finding], known: set[int]) -> Iterator[UnwrittenTensor]:
    for finding in findings:
        pair, moments = finding.pair, finding.measurement.moments
        if pair.target is None or moments is None or is_output(pair) or is_parameter(pair):
            continue
        content = target_content_of(finding)
        if content and content not in known:
            known.add(content)
            yield UnwrittenTensor(pair.order, math.prod(pair.target.shape), moments.target)


def is_read_in_slices(written: Finding, reads: Sequence[UnwrittenTensor]) -> bool:
    """Whether tensors that later operators read are the slices of a tensor and together cover it."""
    pair, moments = written.pair, written.measurement.moments
    if pair.target is None or moments is None:
        return False
    elements, whole = math.prod(pair.target.shape), moments.target
    first = bisect_right(reads, (pair.order, math.inf))
    behind = [one for one in reads[first : first + NEXT_TENSORS] if one.elements < elements]
    return any(
        sum(one.elements for one in readers) == elements and _are_whole(whole, [one.side for one in readers])
        for count in range(2, min(MOST, len(behind)) + 1)
        for readers in combinations(behind, count)
    )


def _are_whole(whole: Side, parts: Sequence[Side]) -> bool:
    """Whether the parts together hold the elements of the whole."""
    return whole.squares > 0 and reduce(add_hashes, (one.hash for one in parts)) == whole.hash


def dead_ends(findings: Sequence[Finding], matched: Sequence[int], again: AbstractSet[int]) -> Iterator[int]:
    """The places of operators of the target alone without an output that is read or compared, in merged graph order.
    `matched` are the places of operators that both sides have, `again` the places of operators that only ran once
    more."""
    read: set[int] = set()
    named: set[str] = set()
    sums: dict[int, list[Side]] = defaultdict(list)  # of compared gradients, by elements
    for finding in findings:
        pair = finding.pair
        if pair.target is not None and (finding.verdict in DECIDED or not is_output(pair)):
            read.add(target_content_of(finding))
            named.add(file_name_of(pair.target.source))
            if finding.verdict in DECIDED and is_gradient(pair.operator) and finding.measurement.moments:
                sums[math.prod(pair.target.shape)].append(finding.measurement.moments.target)
    unread: dict[tuple[int, int], list[Finding]] = defaultdict(list)  # gradients, by gap and elements
    dead: list[tuple[int, list[Finding]]] = []
    for order, group in groupby(findings, key=lambda finding: finding.pair.order):
        rows = list(group)
        operator = rows[0].pair.target_op
        if rows[0].pair.golden_op is not None or operator is None or order in again or operator.inserted:
            continue
        wrote = [one for one in rows if is_output(one.pair) and one.has_elements and not is_meaningless(one.pair)]
        lost = [
            one
            for one in wrote
            if (not (content := target_content_of(one)) or content not in read)
            and file_name_of(f"{operator.name}:{one.pair.slot.partition(':')[2]}") not in named
        ]
        if is_gradient(operator):
            for one in lost:
                unread[bisect_right(matched, order), elements_of(one)].append(one)
        if wrote and len(lost) == len(wrote):
            dead.append((order, lost))
    terms = {key for key, parts in unread.items() if _add_up(parts, sums[key[1]])}
    reads = unwritten_tensors(findings) if dead else []
    for order, lost in dead:
        gap = bisect_right(matched, order)
        if any((gap, elements_of(one)) in terms for one in lost):
            continue
        if not all(is_read_in_slices(one, reads) for one in lost):
            yield order


def elements_of(finding: Finding) -> int:
    """The number of elements of a target tensor."""
    return math.prod(finding.pair.target.shape) if finding.pair.target is not None else 0


def _add_up(parts: Sequence[Finding], compared: Sequence[Side]) -> bool:
    """Whether gradients that no operator reads are the terms of a compared gradient: autograd adds up the gradients of
    a tensor that several operators read, and dumps do not record that sum."""
    sides = [one.measurement.moments.target for one in parts if one.measurement.moments is not None]
    if not sides or len(sides) < len(parts):
        return False
    units = [dtype.round_off for one in parts if one.pair.target and (dtype := lookup(one.pair.target.dtype))]
    total, scale = sum(one.total for one in sides), math.sqrt(sum(one.squares for one in sides))
    near = SUM_ROUNDINGS * max(units, default=0.0) * scale
    return scale > 0 and any(abs(one.total - total) <= near for one in compared)
