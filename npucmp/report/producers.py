"""The producers of the tensors that operators read, for a page and for the next dump."""

from __future__ import annotations

from array import array
from typing import Optional, Sequence

from npucmp.flow.contents import contents_of
from npucmp.flow.edges import Link, links
from npucmp.model import Comparison
from npucmp.model.network import rows_to_search
from npucmp.model.table import Columns, network_fact, orders_of

Linked = Sequence[Optional[Link]]
KEPT = 4  # results of a network: work: contents differ from step to step


def producers_read(one: Comparison) -> Linked:
    """Return the producers of the tensors that the rows of a comparison read, in graph order; None for outputs and for
    unknown producers."""
    rows, numbers = rows_to_search(one), {0: 0}
    contents = (content for side in (1, 0) for content in contents_of(rows, side))
    equal = array("q", [numbers.setdefault(content, len(numbers)) for content in contents]).tobytes()
    known = network_fact(one.columns, _by_equal_contents)
    if equal not in known:
        orders = network_fact(one.columns, orders_of).tolist()
        in_order = sorted(orders)
        findings = rows if orders == in_order else sorted(rows, key=lambda finding: finding.pair.order)
        known[equal] = [*links(findings, in_order)]
        for oldest in [*known][:-KEPT]:
            del known[oldest]
    return known[equal]


def _by_equal_contents(_: Columns) -> dict[bytes, Linked]:
    """Return the producers by the rows whose contents are equal, which ranks of a network have in common."""
    return {}
