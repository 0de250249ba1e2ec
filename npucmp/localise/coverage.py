"""List the golden tensors that a comparison accounts for, so that their agreement is agreement of the network.

A golden tensor with elements is accounted for in one of five states; any other is open, and AGREES is not reported:

compared   its values were measured against the target's
again      it is a recording, a view, a reshape, a cast or a second execution of a compared tensor. The golden's own
           values prove it
interior   it lies in a stretch of operators that the target does not have, and all tensors that enter or leave the
           stretch were compared and agree. A tensor that no operator reads leaves the stretch. A parameter enters it
           without a producer, and counts as interior if no operator outside of the stretch reads it
read       a weight that only the golden recorded: all operators that read it were compared and agree
excluded   the user excluded it; uninitialised memory, workspaces and operands that were overwritten before they were
           recorded count as excluded

The edges are those of the golden: the names of a graph if one exists, otherwise equal content. Operators of the target
in the place of a stretch excuse nothing by themselves. If no operator reads their tensors and none of these is
compared, the stretch stays open.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import compress
from typing import Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.localise.golden_rows import GoldenColumns, GoldenRows
from npucmp.model import Finding, Pair
from npucmp.model.comparison import MOST_LISTED, Coverage, OpenTensor

NO_TENSORS = "the record of one side contains no tensors"


def coverage_of(findings: Sequence[Finding], left_out: Sequence[Pair], context: Optional[ReadContext]) -> Coverage:
    """The coverage of one step and rank, for judged findings in merged graph order and pairs that the user excluded.
    With a `context`, tensors of operators that exist on one side are measured; without it their names decide."""
    golden = GoldenRows(findings)
    columns, sizes = golden.columns, [size or 0 for size in golden.columns.elements]
    open_rows: list[int] = golden.undecided.tolist()
    if open_rows:
        from npucmp.localise.open_tensors import still_open

        open_rows = still_open(golden, context)
    unread = [at for at in columns.lone if at in golden.unreadable]
    missed = sum(map(sizes.__getitem__, open_rows))
    listed = [_open_tensor(columns, findings[at], at) for at in open_rows[:MOST_LISTED]]
    listed += [OpenTensor(name, "", 0, "", NO_TENSORS) for name in columns.bare]
    listed += [_open_tensor(columns, findings[at], at) for at in unread]
    return Coverage(
        sum(compress(sizes, golden.golden.tolist())) - missed,
        missed + sum(map(sizes.__getitem__, unread)),
        len(open_rows) + len(columns.bare) + len(unread),
        len(columns.unsized.intersection((*open_rows, *unread))),
        int((golden.golden & ~golden.decided).sum()) - len(open_rows),
        sum(pair.golden is not None for pair in left_out),
        tuple(listed[:MOST_LISTED]),
        _unaligned(golden, open_rows) if columns.lone else 0,
    )


def _unaligned(golden: GoldenRows, open_rows: Sequence[int]) -> int:
    """Count the open tensors that may be tensors of the target without a partner: they have as many elements."""
    columns = golden.columns
    left = Counter(math.prod(columns.shapes[at]) for at in columns.lone if not golden.exempt[at])
    missing = Counter(columns.elements[at] or 0 for at in open_rows if columns.missing[at])
    return sum((left & missing).values())


def _open_tensor(columns: GoldenColumns, finding: Finding, at: int) -> OpenTensor:
    name, because = columns.operators[at].name, finding.because or "not compared"
    return OpenTensor(name, finding.pair.slot, columns.elements[at], finding.verdict.value, because)
