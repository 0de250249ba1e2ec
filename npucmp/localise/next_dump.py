"""List the operators whose values would decide what a comparison leaves open: the next dump should contain them.

Statistics and checksums show that tensors differ, seldom how; if inputs were not recorded, BORN and PROPAGATED cannot
be distinguished. The values of the reported operators, of their producers and of their consumers decide both. If all of
these were measured by values, another dump would add no information.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Callable, Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.flow.edges import Link
from npucmp.model import Cause, Comparison, Operator, Root, Run
from npucmp.model.roles import containers, names_of
from npucmp.model.table import (
    Columns,
    bare_pairs,
    have_both_sides,
    have_elements,
    network_fact,
    run_fact,
    with_field,
)

Linked = Callable[[], "Sequence[Optional[Link]]"]  # links of the findings of a comparison in graph order


class OpenRoot(NamedTuple):
    """A root that values may decide: its priority, and the orders of its operator and of the operators around it."""

    place: int
    orders: tuple[int, ...]


class OpenRoots(NamedTuple):
    """The roots of one comparison that values may decide, by priority, and the target's and the golden's operator of
    each wanted order."""

    roots: tuple[OpenRoot, ...]
    operators: Mapping[int, tuple[Optional[Operator], Optional[Operator]]]

    @classmethod
    def of(cls, one: Comparison, linked: Linked) -> OpenRoots:
        """Make the Wishes of one comparison."""
        roots = sorted((root for root in one.roots if root.cause is not Cause.PROPAGATED), key=lambda root: root.place)
        if not roots:
            return cls((), {})
        here = _Surroundings(one, roots, linked())
        open_roots = tuple(
            OpenRoot(root.place, (root.pair.order, *here.neighbours(root.pair.order)))
            for root in roots
            if here.is_open(root)
        )
        whole = with_field(one.columns, "file")
        sides = {shared.order: (shared.target, shared.golden) for shared in reversed(whole.operators)}
        return cls(open_roots, {order: sides[order] for root in open_roots for order in root.orders})


def in_order(roots: Sequence[Sequence[OpenRoot]]) -> list[tuple[int, int]]:
    """The wanted operators, each once, by the number of their comparison and their order; `roots` holds the roots of
    each comparison. The first root and its neighbours come first, then the nearest operators of its run, then other
    steps and ranks."""
    every = sorted((root.place, number, root.orders) for number, open_roots in enumerate(roots) for root in open_roots)
    found = dict.fromkeys((number, order) for _, number, orders in every for order in orders)
    if not found:
        return []
    _, first, orders = every[0]
    head = {(first, order) for order in orders}
    return sorted(found, key=lambda key: (key not in head, key[0] != first, abs(key[1] - orders[0]), key))


class _Surroundings:
    """The operators around the roots of one comparison, by order.

    before, behind  the producers of a root's inputs, and the consumers of its outputs
    """

    def __init__(self, comparison: Comparison, roots: Sequence[Root], linked: Sequence[Optional[Link]]) -> None:
        columns = comparison.columns
        self._rows = network_fact(columns, _Rows.of)
        self._full = run_fact(comparison.target, _containers)
        is_whole = network_fact(columns, have_both_sides) & network_fact(columns, have_elements)
        self._lack_values = is_whole & (columns.rows["moments"] < 0) & (columns.rows["unlike"] == 0)
        self.before: dict[int, set[int]] = {root.pair.order: set() for root in roots}
        self.behind: dict[int, set[int]] = {root.pair.order: set() for root in roots}
        for order, link in zip(self._rows.orders, linked):
            if link is not None and link.order != order:
                self._connect(link.order, order)
        for forward, backward in self._rows.saved:
            self._connect(forward, backward)
        self._connect_in_time()

    def _connect(self, writer: int, reader: int) -> None:
        if reader in self.before:
            self.before[reader].add(writer)
        if writer in self.behind:
            self.behind[writer].add(reader)

    def _connect_in_time(self) -> None:
        """If the producers or consumers of a root are unknown, take the adjacent operators."""
        orders = list(self._rows.of_order)
        for order in self.before:
            at = bisect_left(orders, order)
            self.before[order].update([] if self.before[order] else orders[max(at - 1, 0) : at])
            self.behind[order].update([] if self.behind[order] else orders[at + 1 : at + 2])

    def neighbours(self, order: int) -> list[int]:
        """The producers of a root's inputs and the consumers of its outputs. A module around other operators does not
        count: its values are those of the operators inside."""
        return [one for one in sorted(self.before[order] | self.behind[order]) if not self._is_container(one)]

    def _is_container(self, order: int) -> bool:
        return not self._full.isdisjoint(names_of(self._rows.operators[order]))

    def is_open(self, root: Root) -> bool:
        """Whether values would add information about a root."""
        own = root.pair.order
        sides = (root.pair.target_op, root.pair.golden_op)
        is_known = not self._lacks([own]) and any(one.reads_recorded for one in sides if one is not None)
        return not is_known or (root.cause in (Cause.GAP, Cause.UNKNOWN) and self._lacks(self.before[own]))

    def _lacks(self, orders: Iterable[int]) -> bool:
        """Whether some operator has a tensor on both sides whose values were not compared although the shapes allow
        it."""
        return any(self._lack_values[self._rows.of_order[order]].any() for order in orders)


class _Rows(NamedTuple):
    """The operators of a table.

    orders     of the rows, in graph order
    of_order   the rows of each operator; `operators`: the operator of each order
    saved      orders of a forward operator and of the backward operator that reads tensors that it saved
    """

    orders: Sequence[int]
    of_order: Mapping[int, Sequence[int]]
    operators: Mapping[int, Operator]
    saved: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, columns: Columns) -> _Rows:
        pairs = network_fact(columns, bare_pairs)
        of_order: dict[int, list[int]] = defaultdict(list)
        for row in sorted(range(len(pairs)), key=lambda row: pairs[row].order):
            of_order[pairs[row].order].append(row)
        operators = {order: pairs[rows[0]].operator for order, rows in of_order.items()}
        forward, saved = dict[str, int](), list[tuple[int, int]]()
        for order, operator in operators.items():
            if operator.phase == "forward":
                forward[operator.call] = order
            elif operator.phase == "backward" and operator.call in forward:
                saved.append((forward[operator.call], order))
        return cls(sorted(pair.order for pair in pairs), of_order, operators, saved)


def _containers(run: Run) -> set[str]:
    """The records and paths of modules that contain an operator."""
    scopes = {operator.name: operator.scope for operator in run.operators if operator.scope}
    return {name for operator in run.operators for name in containers(operator, scopes)}
