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
from npucmp.model import Cause, Comparison, Finding, Pair, Root
from npucmp.model.roles import containers

Linked = Callable[[], "Sequence[Optional[Link]]"]  # links of the findings of a comparison in graph order


class OpenRoot(NamedTuple):
    """A root that values may decide: its priority, and the orders of its operator and of the operators around it."""

    place: int
    orders: tuple[int, ...]


class OpenRoots(NamedTuple):
    """The roots of one comparison that values may decide, by priority, and a pair of each wanted operator, by its
    order."""

    roots: tuple[OpenRoot, ...]
    pairs: Mapping[int, Pair]

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
        return cls(open_roots, {order: here.groups[order][0].pair for root in open_roots for order in root.orders})


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

    groups          findings of each operator
    before, behind  the producers of a root's inputs, and the consumers of its outputs
    """

    def __init__(self, comparison: Comparison, roots: Sequence[Root], linked: Sequence[Optional[Link]]) -> None:
        self.roots = roots
        self.groups: dict[int, list[Finding]] = defaultdict(list)
        self.before: dict[int, set[int]] = {root.pair.order: set() for root in roots}
        self.behind: dict[int, set[int]] = {root.pair.order: set() for root in roots}
        ordered = sorted(comparison.findings, key=lambda finding: finding.pair.order)
        for finding, link in zip(ordered, linked):
            order = finding.pair.order
            self.groups[order].append(finding)
            if link is not None and link.order != order:
                self._connect(link.order, order)
        forward = {}
        for order, group in self.groups.items():
            operator = group[0].pair.operator
            if operator.phase == "forward":
                forward[operator.call] = order
            elif operator.phase == "backward" and operator.call in forward:  # reads tensors that it saved
                self._connect(forward[operator.call], order)
        self._connect_in_time()
        operators = comparison.target.operators
        scopes = {operator.name: operator.scope for operator in operators if operator.scope}
        self._full = {name for operator in operators for name in containers(operator, scopes)}

    def _connect(self, writer: int, reader: int) -> None:
        if reader in self.before:
            self.before[reader].add(writer)
        if writer in self.behind:
            self.behind[writer].add(reader)

    def _connect_in_time(self) -> None:
        """If the producers or consumers of a root are unknown, take the adjacent operators."""
        orders = list(self.groups)
        for order in self.before:
            at = bisect_left(orders, order)
            self.before[order].update([] if self.before[order] else orders[max(at - 1, 0) : at])
            self.behind[order].update([] if self.behind[order] else orders[at + 1 : at + 2])

    def neighbours(self, order: int) -> list[int]:
        """The producers of a root's inputs and the consumers of its outputs. A module around other operators does not
        count: its values are those of the operators inside."""
        return [one for one in sorted(self.before[order] | self.behind[order]) if not self._is_container(one)]

    def _is_container(self, order: int) -> bool:
        operator = self.groups[order][0].pair.operator
        return not self._full.isdisjoint((operator.name, f"{operator.phase} {operator.path}"))

    def is_open(self, root: Root) -> bool:
        """Whether values would add information about a root."""
        own = root.pair.order
        sides = (root.pair.target_op, root.pair.golden_op)
        if self._lacks([own]) or not any(one.reads_recorded for one in sides if one is not None):
            return True
        return root.cause in (Cause.GAP, Cause.UNKNOWN) and self._lacks(self.before[own])

    def _lacks(self, orders: Iterable[int]) -> bool:
        """Whether some operator has a tensor on both sides that was not measured by its values."""
        return any(_lacks_values(finding) for order in orders for finding in self.groups[order])


def _lacks_values(finding: Finding) -> bool:
    """Whether both sides have a tensor whose values were not compared although the shapes allow it."""
    one = finding.measurement
    both = one.pair.target is not None and one.pair.golden is not None
    return both and one.moments is None and not one.unlike and finding.has_elements
