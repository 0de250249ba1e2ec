"""The producer of each tensor that an operator reads, for reports: operators of one run only are producers too.

A graph names producers; else the nearest earlier output of equal content is the producer (flow/edges.py): of the golden
tensor, or of the target's if the golden's content does not identify it.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple, Optional, Sequence

from npucmp.flow.contents import contents_of
from npucmp.flow.edges import Link, Producers
from npucmp.model import Comparison
from npucmp.model.network import SearchRows
from npucmp.model.roles import is_output
from npucmp.model.table import Columns, Table, bare_pairs, network_fact

Linked = Sequence[Optional[Link]]


class _Readers(NamedTuple):
    """The operators in graph order, and the links that graphs name, by row. Of each operator: its order, the tensors
    that it reads as (place in graph order, row), and the rows that it writes."""

    operators: Sequence[tuple[int, Sequence[tuple[int, int]], Sequence[int]]]
    named: dict[int, Link]

    @classmethod
    def of(cls, columns: Columns) -> _Readers:
        pairs = network_fact(columns, bare_pairs)
        sequence = [*enumerate(sorted(range(len(pairs)), key=lambda row: pairs[row].order))]
        operators = [
            (
                order,
                [(at, row) for at, row in members if not is_output(pairs[row])],
                [row for _, row in members if is_output(pairs[row])],
            )
            for order, members in (
                (order, [*group]) for order, group in groupby(sequence, key=lambda one: pairs[one[1]].order)
            )
        ]
        named: dict[int, Link] = {}
        if any(tensor is not None and tensor.source for pair in pairs for tensor in pair[4:6]):
            target, golden = Producers[int](), Producers[int]()
            for order, reads, writes in operators:
                for _, row in reads:
                    producer = target.graph_producer(pairs[row].target)
                    producer = golden.graph_producer(pairs[row].golden) if producer is None else producer
                    if producer is not None:
                        named[row] = Link(producer, "by the graph")
                for pair in map(pairs.__getitem__, writes):
                    if pair.target_op is not None:
                        target.add_output(pair.target_op, pair.slot, order)
                    if pair.golden_op is not None and not (pair.golden is None and pair.is_inside):
                        golden.add_output(pair.golden_op, pair.slot, order)
        return cls(operators, named)


def producers_read(one: Comparison) -> Linked:
    """Return the producers of the tensors that the rows of a comparison read, in graph order; None for outputs and for
    unknown producers."""
    columns = one.columns
    readers = network_fact(columns, _Readers.of)
    rows = SearchRows(Table(columns=columns))
    targets, goldens = contents_of(rows, 0), contents_of(rows, 1)
    written: dict[int, Link] = {}  # by the content of the golden tensor
    of_target: dict[int, Link] = {}
    found: list[Optional[Link]] = [None] * len(goldens)
    for order, reads, writes in readers.operators:
        for at, row in reads:
            found[at] = readers.named.get(row) or written.get(goldens[row]) or of_target.get(targets[row])
        link = Link(order, "by equal content")
        for row in writes:
            written[goldens[row]] = of_target[targets[row]] = link
        written.pop(0, None)
        of_target.pop(0, None)
    return found
