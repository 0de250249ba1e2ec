"""Find operators of the target alone whose outputs are unused: no operator reads them, whole or in slices, and no
compared tensor holds them.

It is not known whether such an operator, in the place of a golden stretch, computes what the stretch computes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from itertools import groupby
from typing import AbstractSet, Iterator, Sequence

from npucmp.dump.readers.name_rules import escaped
from npucmp.flow.contents import target_content_of
from npucmp.localise.rule_context import WALKS
from npucmp.localise.slices import is_read_in_slices, unwritten
from npucmp.model import DECIDED, Finding, Side
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import is_gradient
from npucmp.model.roles import is_meaningless, is_output


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
            named.add(escaped(pair.target.source))
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
            and escaped(f"{operator.name}:{one.pair.slot.partition(':')[2]}") not in named
        ]
        if is_gradient(operator):
            for one in lost:
                unread[bisect_right(matched, order), elements_of(one)].append(one)
        if wrote and len(lost) == len(wrote):
            dead.append((order, lost))
    terms = {key for key, parts in unread.items() if _add_up(parts, sums[key[1]])}
    reads = unwritten(findings) if dead else []
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
    near = WALKS * max(units, default=0.0) * scale
    return scale > 0 and any(abs(one.total - total) <= near for one in compared)
