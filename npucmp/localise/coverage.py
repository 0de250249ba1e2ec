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
from itertools import groupby
from typing import TYPE_CHECKING, Iterator, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.localise.alignment_confidence import OUTPUT
from npucmp.localise.golden_rows import GoldenRow
from npucmp.model import DECIDED, Finding, Pair, Verdict
from npucmp.model.comparison import MOST_LISTED, Coverage, OpenTensor
from npucmp.model.finding import BY_CONTENT, MEANINGLESS
from npucmp.model.roles import is_argument, is_meaningless

if TYPE_CHECKING:
    from npucmp.localise.recorded_graph import RecordedGraph

NO_TENSORS = "the record of one side contains no tensors"


def coverage_of(findings: Sequence[Finding], left_out: Sequence[Pair], context: Optional[ReadContext]) -> Coverage:
    """The coverage of one step and rank, for judged findings in merged graph order and pairs that the user excluded.
    With a `context`, tensors of operators that exist on one side are measured; without it their names decide."""
    excluded = sum(pair.golden is not None for pair in left_out)
    graph = _recorded_graph(findings)
    if graph is not None:
        return _coverage_of_figures(findings, graph, excluded)
    golden, open_rows = _golden_tensors(findings)
    bare = [*_bare_records(findings)]
    if open_rows:
        from npucmp.localise.open_tensors import still_open

        open_rows = still_open(findings, golden, open_rows, context)
    is_open = {row.finding.row for row in open_rows}
    unread = [one for one in findings if one.pair.golden is None and one.verdict is Verdict.UNREADABLE]
    covered = sum(row.elements or 0 for row in golden if row.finding.row not in is_open)
    listed = [*map(_open_tensor, open_rows), *bare, *(_open_tensor(GoldenRow.of(one)) for one in unread)]
    return Coverage(
        covered,
        sum(one.elements or 0 for one in listed),
        len(listed),
        sum(one.elements is None for one in listed),
        sum(row.finding.verdict not in DECIDED for row in golden) - len(open_rows),
        excluded,
        tuple(listed[:MOST_LISTED]),
        _unaligned(findings, open_rows),
    )


def _unaligned(findings: Sequence[Finding], open_rows: Sequence[GoldenRow]) -> int:
    """Count the open tensors that may be tensors of the target without a partner: they have as many elements."""
    alone = [one for one in findings if one.pair.golden is None and one.pair.target is not None]
    left = Counter(math.prod(one.pair.target.shape) for one in alone if one.pair.target and not _is_exempt(one))
    missing = Counter(row.elements or 0 for row in open_rows if row.finding.pair.target is None)
    return sum((left & missing).values())


def _recorded_graph(findings: Sequence[Finding]) -> Optional[RecordedGraph]:
    if any(one.measurement.moments is not None for one in findings):
        return None
    from npucmp.localise.recorded_graph import RecordedGraph

    return RecordedGraph.of(findings)


def _coverage_of_figures(findings: Sequence[Finding], graph: RecordedGraph, excluded: int) -> Coverage:
    """The coverage if every tensor has a partner, and the dumps recorded statistics alone."""
    left = graph.open_rows()
    missed = sum(map(graph.elements.__getitem__, left))
    covered = sum(map(graph.elements.__getitem__, graph.golden)) - missed
    first = tuple(_open_tensor(GoldenRow.of(findings[at])) for at in left[:MOST_LISTED])
    return Coverage(covered, missed, len(left), 0, len(graph.undecided) - len(left), excluded, first)


def _open_tensor(row: GoldenRow) -> OpenTensor:
    finding = row.finding
    because = finding.because or "not compared"
    return OpenTensor(row.operator.name, finding.pair.slot, row.elements, finding.verdict.value, because)


def _golden_tensors(findings: Sequence[Finding]) -> tuple[list[GoldenRow], list[GoldenRow]]:
    """Return the golden tensors that a comparison has to account for, and those among them that were not compared."""
    golden, open_rows = [], []
    for finding in findings:
        pair = finding.pair
        if pair.golden is None:
            continue
        row = GoldenRow.of(finding)
        if row.elements == 0:
            continue
        if finding.verdict in DECIDED and not _is_uncertain(pair):
            golden.append(row)
        elif not _is_exempt(finding):
            golden.append(row)
            open_rows.append(row)
    return golden, open_rows


def _is_uncertain(pair: Pair) -> bool:
    """Whether the alignment by contents is too uncertain to say that the golden tensor was compared."""
    return pair.via in BY_CONTENT and pair.confidence < OUTPUT


def _is_exempt(finding: Finding) -> bool:
    """Whether the content of a tensor is undefined, or the network has no such tensor."""
    pair = finding.pair
    if finding.verdict is Verdict.UNREADABLE:
        return False
    if pair.golden is not None and pair.golden.relation is not None and pair.golden.relation.is_local:
        return True  # relations/ranks/assembled_run.py: what reads it was compared
    own = pair.target is None or pair.golden is None
    if own and pair.golden is not None:
        from npucmp.relations.token_records import records_layout

        if records_layout(pair.golden_op, pair.golden):
            return True  # what is made of it is compared
    return finding.rule in MEANINGLESS or is_meaningless(pair) or (own and pair.is_inside) or is_argument(pair)


def _bare_records(findings: Sequence[Finding]) -> Iterator[OpenTensor]:
    """Yield records that hold no tensors on one side although the other side does; none of their tensors was
    compared."""
    for _, group in groupby(findings, key=lambda finding: finding.pair.order):
        first = next(group)
        pair = first.pair
        if pair.target_op is None or pair.golden_op is None or pair.golden_op.tensors or not pair.target_op.tensors:
            continue
        yield OpenTensor(pair.golden_op.name, "", 0, "", NO_TENSORS)
