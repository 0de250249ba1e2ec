"""The producers of the tensors that operators read, for a page and for the next dump."""

from __future__ import annotations

from typing import Optional, Sequence

from npucmp.flow.contents import by_equal_rows
from npucmp.flow.edges import Link, links
from npucmp.model import Comparison
from npucmp.model.network import rows_to_search
from npucmp.model.table import network_fact, orders_of

Linked = Sequence[Optional[Link]]


def producers_read(one: Comparison) -> Linked:
    """Return the producers of the tensors that the rows of a comparison read, in graph order; None for outputs and for
    unknown producers."""
    rows = rows_to_search(one)

    def made() -> Linked:
        orders = network_fact(one.columns, orders_of).tolist()
        in_order = sorted(orders)
        return [*links(rows if orders == in_order else sorted(rows, key=lambda row: row.pair.order), in_order)]

    return by_equal_rows(rows, producers_read, made)
