"""The producer of each tensor that an operator reads, for reports: operators of one run only are producers too.

A graph names producers; else the nearest earlier output of equal content is the producer (flow/edges.py): of the golden
tensor, or of the target's if the golden's content does not identify it.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple, Optional, Sequence

from npucmp.flow.content_columns import contents_of
from npucmp.flow.edges import Link, Producers
from npucmp.model import Comparison
from npucmp.model.roles import is_output
from npucmp.model.table import Columns, bare_pairs, network_fact

Linked = Sequence[Optional[Link]]


class _Readers(NamedTuple):
    """The rows of each operator in graph order, as the order of the operator, its rows and whether each is an output;
    and the links that graphs name, by row."""

    operators: Sequence[tuple[int, Sequence[tuple[int, bool]]]]
    named: dict[int, Link]

    @classmethod
    def of(cls, columns: Columns) -> _Readers:
        pairs = network_fact(columns, bare_pairs)
        sequence = sorted(range(len(pairs)), key=lambda row: pairs[row].order)
        grouped = groupby(sequence, key=lambda row: pairs[row].order)
        operators = [(order, [(row, is_output(pairs[row])) for row in rows]) for order, rows in grouped]
        named: dict[int, Link] = {}
        if any(tensor is not None and tensor.source for pair in pairs for tensor in pair[4:6]):
            target, golden = Producers[int](), Producers[int]()
            for order, rows in operators:
                for row, writes in rows:
                    pair = pairs[row]
                    producer = target.graph_producer(pair.target)
                    producer = golden.graph_producer(pair.golden) if producer is None else producer
                    if producer is not None and not writes:
                        named[row] = Link(producer, "by the graph")
                for pair in (pairs[row] for row, writes in rows if writes):
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
    targets, goldens = contents_of(columns, 0), contents_of(columns, 1)
    written: dict[bytes, Link] = {}  # by the content of the golden tensor
    of_target: dict[bytes, Link] = {}
    found: list[Optional[Link]] = []
    for order, rows in readers.operators:
        for row, writes in rows:
            if writes:
                found.append(None)
            else:
                found.append(readers.named.get(row) or written.get(goldens[row]) or of_target.get(targets[row]))
        link = Link(order, "by equal content")
        for row, writes in rows:
            if writes:
                written[goldens[row]] = of_target[targets[row]] = link
        written.pop(b"", None)
        of_target.pop(b"", None)
    return found
