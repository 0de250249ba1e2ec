"""Find operators of the target alone whose outputs are unused.

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
from itertools import combinations
from operator import attrgetter
from typing import AbstractSet, Iterable, Iterator, Sequence

from npucmp.dump.readers.names import file_name_of
from npucmp.flow.contents import contents_of
from npucmp.localise.golden_rows import GoldenColumns
from npucmp.localise.rule_context import SUM_ROUNDINGS
from npucmp.model import DECIDED, Finding, Side
from npucmp.model.dtypes import lookup
from npucmp.model.moments import add_hashes
from npucmp.model.optypes import is_gradient
from npucmp.model.roles import is_meaningless, is_parameter
from npucmp.model.table import rows_of_verdicts

NEXT_TENSORS = 8  # tensors without a writer: work: slices are searched among the next ones
MOST = 4  # slices of a tensor: definition: queries, keys and values; the four gates of an LSTM


def dead_ends(findings: Sequence[Finding], columns: GoldenColumns, again: AbstractSet[int]) -> Iterator[int]:
    """The places of operators of the target alone without an output that is read or compared, in merged graph order.
    `again` are the places of operators that only ran once more."""
    pairs, outputs, contents = columns.pairs, columns.outputs, contents_of(findings, side=0)
    own = {at: pair.target for at, pair in enumerate(pairs) if pair.target is not None}
    compared = own.keys() & rows_of_verdicts(findings, DECIDED)
    used = [at for at in own if at in compared or not outputs[at]]
    read, named = {contents[at] for at in used}, {file_name_of(own[at].source) for at in used}
    unread: dict[tuple[int, int], list[Finding]] = defaultdict(list)  # gradients, by gap and elements
    dead: list[tuple[int, list[Finding]]] = []
    for rows, first in zip(columns.members, columns.firsts):
        operator, gap = first.operator, bisect_right(columns.matched, first.order)
        if first.golden_op is not None or first.order in again or operator.inserted:
            continue
        wrote = [at for at in rows if outputs[at] and findings[at].has_elements and not is_meaningless(pairs[at])]
        lost = [
            findings[at]
            for at in wrote
            if not (contents[at] and contents[at] in read)
            and file_name_of(f"{operator.name}:{pairs[at].slot.partition(':')[2]}") not in named
        ]
        for finding in lost if is_gradient(operator) else ():
            unread[gap, elements_of(finding)].append(finding)
        if wrote and len(lost) == len(wrote):
            dead.append((gap, lost))
    sums = [findings[at] for at in compared if unread and is_gradient(pairs[at].operator)]
    terms = {
        key for key, parts in unread.items() if _add_up(parts, [one for one in sums if elements_of(one) == key[1]])
    }
    known, reads = {contents[at] for at in own if outputs[at]}, list[Finding]()
    for at in own if dead else ():
        is_read = bool(contents[at]) and not outputs[at] and not is_parameter(pairs[at])
        if is_read and contents[at] not in known and findings[at].measurement.moments is not None:
            known.add(contents[at])
            reads.append(findings[at])
    for gap, lost in dead:
        is_term = any((gap, elements_of(finding)) in terms for finding in lost)
        if not is_term and not all(_is_read_in_slices(finding, reads) for finding in lost):
            yield lost[0].pair.order


def elements_of(finding: Finding) -> int:
    """The number of elements of a target tensor."""
    return math.prod(finding.pair.target.shape) if finding.pair.target is not None else 0


def _side(finding: Finding) -> Side:
    """The target's moments of a row, those of an empty tensor if its values are unknown."""
    moments = finding.measurement.moments
    return moments.target if moments is not None else Side()


def _is_read_in_slices(written: Finding, reads: Sequence[Finding]) -> bool:
    """Whether tensors that later operators read are the slices of a tensor and together cover it. `reads` are the
    tensors that no operator wrote, each at its first read."""
    elements, whole = elements_of(written), _side(written)
    behind = [finding for finding in reads if finding.pair.order > written.pair.order][:NEXT_TENSORS]
    parts = [finding for finding in behind if elements_of(finding) < elements]
    return whole.squares > 0 and any(
        sum(map(elements_of, slices)) == elements
        and reduce(add_hashes, (_side(finding).hash for finding in slices)) == whole.hash
        for count in range(2, min(MOST, len(parts)) + 1)
        for slices in combinations(parts, count)
    )


def _add_up(parts: Sequence[Finding], compared: Iterable[Finding]) -> bool:
    """Whether gradients that no operator reads are the terms of a compared gradient: autograd adds up the gradients of
    a tensor that several operators read, and dumps do not record that sum."""
    types = (lookup(finding.pair.target.dtype) for finding in parts if finding.pair.target is not None)
    total, scale = (sum(map(attrgetter(name), map(_side, parts))) for name in ("total", "squares"))
    near = SUM_ROUNDINGS * max((dtype.round_off for dtype in types if dtype), default=0.0) * math.sqrt(scale)
    is_known = all(finding.measurement.moments is not None for finding in parts)
    return is_known and scale > 0 and any(abs(_side(finding).total - total) <= near for finding in compared)
