"""Which operators' values would decide what a comparison leaves open: those that the next dump is to hold.

Statistics and checksums tell that tensors differ, seldom how; where inputs were not recorded, nobody can tell birth
from passing on. The values of the operators that were named, of those that wrote what they read and of those that read
what they wrote, decide both. Where all of these were measured by their values, another dump would tell nothing new.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import Iterator, NamedTuple, Sequence

from npucmp.localise.nodes import containers
from npucmp.localise.producers import links
from npucmp.model import Cause, Comparison, Finding, Pair, Root


class Wish(NamedTuple):
    """An operator whose values are wanted: the number of its comparison, and any of its pairs."""

    comparison: int
    pair: Pair


def wishes(comparisons: "Sequence[Comparison]") -> "list[Wish]":
    """Roots that values may decide, and what stands around them, each operator once. The first root and its neighbours
    come first, then what is nearest to it in its run, then other steps and ranks."""
    found: dict[tuple[int, int], Wish] = {}
    around = {number: _Surroundings.of(one) for number, one in enumerate(comparisons) if any(map(_is_named, one.roots))}
    roots = [(number, root) for number in around for root in comparisons[number].roots if _is_named(root)]
    head: set[tuple[int, int]] = set()
    for number, root in sorted(roots, key=lambda one: one[1].place):
        here = around[number]
        if here.is_open(root):
            orders = [root.pair.order, *here.neighbours(root.pair.order)]
            found.update(((number, order), Wish(number, here.pairs[order])) for order in orders)
            head = head or set(found)
    if not found:
        return []
    first, start = next(iter(found))
    return [
        wish
        for key, wish in sorted(
            found.items(),
            key=lambda one: (one[0] not in head, one[0][0] != first, abs(one[0][1] - start), one[0]),
        )
    ]


def _is_named(root: Root) -> bool:
    return root.cause is not Cause.PROPAGATED


@dataclass
class _Surroundings:
    """Who stands around whom in one comparison, operators by their order.

    lacking     operators of which some tensor is on both sides and was not measured by its values
    containers  modules around others: their values are those of what is in them, so that they are nobody's neighbours
    """

    pairs: dict[int, Pair] = field(default_factory=dict)
    lacking: set[int] = field(default_factory=set)
    before: "defaultdict[int, set[int]]" = field(default_factory=lambda: defaultdict(set))
    behind: "defaultdict[int, set[int]]" = field(default_factory=lambda: defaultdict(set))
    containers: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, comparison: Comparison) -> "_Surroundings":
        here = cls()
        ordered = sorted(comparison.findings, key=lambda finding: finding.pair.order)
        for order, group in groupby(ordered, key=lambda finding: finding.pair.order):
            own = list(group)
            here.pairs[order] = own[0].pair
            if any(map(_lacks_values, own)):
                here.lacking.add(order)
        for finding, link in zip(ordered, links(ordered)):
            if link is not None and link.order != finding.pair.order:
                here._connect(link.order, finding.pair.order)
        forward = {pair.operator.call: order for order, pair in here.pairs.items() if pair.operator.phase == "forward"}
        for order, pair in here.pairs.items():
            if pair.operator.phase == "backward" and pair.operator.call in forward:  # it reads what that saved
                here._connect(forward[pair.operator.call], order)
        here._connect_in_time()
        operators = comparison.target.operators
        scopes = {operator.name: operator.scope for operator in operators if operator.scope}
        full = {name for operator in operators for name in containers(operator, scopes)}
        named = {order: pair.operator for order, pair in here.pairs.items()}
        here.containers.update(
            order for order, one in named.items() if not full.isdisjoint((one.name, f"{one.phase} {one.path}"))
        )
        return here

    def _connect(self, writer: int, reader: int) -> None:
        self.before[reader].add(writer)
        self.behind[writer].add(reader)

    def _connect_in_time(self) -> None:
        """Where nobody is known to write what an operator reads, or to read what it wrote: those next to it."""
        orders = sorted(self.pairs)
        known = {order for order in orders if self.before[order]}, {order for order in orders if self.behind[order]}
        for earlier, later in zip(orders, orders[1:]):
            if later not in known[0]:
                self.before[later].add(earlier)
            if earlier not in known[1]:
                self.behind[earlier].add(later)

    def neighbours(self, order: int) -> Iterator[int]:
        """Those that wrote what an operator reads, and those that read what it wrote."""
        yield from sorted((self.before[order] | self.behind[order]) - self.containers)

    def is_open(self, root: Root) -> bool:
        """Whether values would tell more of a root."""
        order = root.pair.order
        sides = (root.pair.target_op, root.pair.golden_op)
        if order in self.lacking or not any(one.reads_recorded for one in sides if one is not None):
            return True
        return root.cause in (Cause.GAP, Cause.UNKNOWN) and not self.lacking.isdisjoint(self.before[order])


def _lacks_values(finding: Finding) -> bool:
    """Whether both sides have a tensor and its values were not compared, though they might have been."""
    one = finding.measurement
    both = one.pair.target is not None and one.pair.golden is not None
    return both and one.moments is None and not one.unlike and finding.has_elements
