"""The plot of errors along the network of one comparison."""

from __future__ import annotations

import math
from typing import Optional, Sequence

from npucmp.model import Cause, Comparison
from npucmp.model.comparison import tallies_of
from npucmp.model.roles import is_output
from npucmp.model.table import bare_pairs, has_error, network_fact
from npucmp.report.answer import Plot


def first_comparison(comparisons: Sequence[Comparison]) -> Optional[Comparison]:
    """Return the comparison of the first suspect, else the first one; None without comparisons."""
    places = [one.first[0] if one.first is not None else math.inf for one in tallies_of(comparisons)]
    return comparisons[places.index(min(places))] if places else None


def error_plot(one: Optional[Comparison]) -> Optional[Plot]:
    """Return the errors of operators with their limits: of several outputs, the one that is furthest beyond its limit.
    None without comparison."""
    if one is None:
        return None
    worst: dict[int, tuple[float, float, float]] = {}
    table = one.columns
    pairs, numbers = network_fact(table, bare_pairs), (table.rows[name].tolist() for name in ("error", "limit"))
    for pair, is_known, error, limit in zip(pairs, has_error(table).tolist(), *numbers):
        if is_known and is_output(pair):
            beyond = error / limit if limit else error
            known = worst.get(pair.order)
            if known is None or not beyond <= known[0]:
                worst[pair.order] = (beyond, error, limit)
    causes = {root.pair.order for root in one.roots if root.cause is not Cause.PROPAGATED}
    shown = {order: error for order, (_, error, _) in sorted(worst.items()) if error != 0}
    limits = {order: limit for order, (_, _, limit) in sorted(worst.items()) if limit}
    found = {order: error for order, error in shown.items() if order in causes}
    equal = len(worst) - len(shown)
    curves = [
        ("error of the output (rel_l2)", [*shown], [*shown.values()]),
        ("limit", [*limits], [*limits.values()]),
        ("suspects", [*found], [*found.values()]),
    ]
    words = "in order of execution" + (f" · {equal:,} operators without error are not drawn" if equal else "")
    return Plot("The error along the network", words, [curve for curve in curves if curve[1]], dots=(1, 3))
