"""Find golden tensors without a compared counterpart, after repeated recordings and closed stretches are removed."""

from __future__ import annotations

from typing import Optional, Sequence

from npucmp.dump.context import ReadContext
from npucmp.localise.golden_graph import GoldenGraph, lost_outputs
from npucmp.localise.golden_rows import GoldenRow, SharedRecords
from npucmp.localise.gradient_stretches import closed_backwards
from npucmp.localise.stretch import Stretch
from npucmp.localise.value_proof import ValueProof
from npucmp.measure.views import Views
from npucmp.model import DECIDED, Finding


def still_open(
    findings: Sequence[Finding],
    golden: list[GoldenRow],
    open_rows: list[GoldenRow],
    context: Optional[ReadContext],
) -> list[GoldenRow]:
    """The open rows that no compared tensor accounts for, in merged graph order."""
    if not any(row.finding.verdict in DECIDED for row in golden):
        return open_rows
    graph = GoldenGraph(findings, golden)
    left = _unaccounted(graph, open_rows)
    proof = ValueProof(findings, graph, Views(context)) if left and context is not None else None
    while left and proof is not None:
        proven = {row.finding.row for row in left if proof.proves(row)}
        if not proven:
            break
        graph.prove(proven)
        left = _unaccounted(graph, open_rows)
    return left


def _unaccounted(graph: GoldenGraph, open_rows: list[GoldenRow]) -> list[GoldenRow]:
    """The rows that remain after recordings of compared tensors and closed stretches are removed."""
    left = [row for row in open_rows if not graph.is_again(row)]
    loose = {row.finding.row for row in left}
    interior: set[int] = set()
    seen: set[SharedRecords] = set()
    for row in left:
        content = graph.content(row)
        if content in seen:
            continue
        stretch = Stretch(graph, content, loose)
        seen |= {*stretch.contents}
        if stretch.is_closed():
            interior |= {one.finding.row for inside in stretch.contents for one in inside.rows}
    left = [row for row in left if row.finding.row not in interior or lost_outputs(row.finding.pair)]
    closed = closed_backwards(graph, left)
    return [row for row in left if row.finding.pair.order not in closed or graph.is_of_parameter(row)]
