"""The search for roots over all ranks of a step, and the places of all roots.

The ranks are walked side by side, in an order in which nothing comes before what it waits for. A collective or receive
is told what other ranks put in: if an error descends from a root there, it descends from that root here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Hashable, Iterator, NamedTuple, Optional, Sequence

from npucmp.localise.case import error_size
from npucmp.localise.communications import Communications, Place, is_buffer, sends
from npucmp.localise.evidence import reason
from npucmp.localise.limits import disregard
from npucmp.localise.nodes import OperatorFindings
from npucmp.localise.noise import Noise
from npucmp.localise.past import differs
from npucmp.localise.producers import Fingerprint, Producers, Source, fingerprint
from npucmp.localise.rules import Rulebook
from npucmp.localise.suspects import Told, concluded
from npucmp.localise.updates import Updates
from npucmp.localise.walk import Walk
from npucmp.model import Cause, Comparison, Finding, Operator, Root

GRAVITY = {Cause.BORN: 0, Cause.GAP: 0, Cause.WORSENED: 1, Cause.SUSPECT: 2, Cause.UNKNOWN: 3, Cause.PROPAGATED: 4}

_Ranked = tuple[int, int, int, int, Root]  # step, gravity, clock, comparison, root


def with_roots(
    comparisons: Sequence[Comparison], by_round_off: bool = True, rules: "Optional[Rulebook]" = None
) -> "list[Comparison]":
    """The comparisons, each with its roots, their places counted over all of them, and with its findings, `diverged`
    taken back where inputs explain the error."""
    steps: dict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(comparisons):
        steps[one.target.step or one.golden.step or 0].append(number)
    found = list(comparisons)
    ranked: list[_Ranked] = []
    before: dict[Optional[int], list[Finding]] = {}  # by rank, of the step before
    faulty = False  # whether an error was born in a step before
    for step, numbers in sorted(steps.items()):
        some = [comparisons[number] for number in numbers]
        updates = [Updates(before.get(one.rank, ()), faulty) for one in some]
        ranks = _Ranks(some, updates, by_round_off, rules or Rulebook())
        ranks.visit()
        for number, (findings, roots) in zip(numbers, ranks.suspected()):
            before[found[number].rank] = findings
            found[number] = replace(found[number], findings=tuple(findings))
            faulty = faulty or any(root.cause is not Cause.PROPAGATED for _, root in roots)
            ranked += ((step, GRAVITY[root.cause], clock, number, root) for clock, root in roots)
    return _in_places(found, ranked)


def placed(comparisons: Sequence[Comparison]) -> "list[Comparison]":
    """The same with the places of their roots counted again, after causes were changed."""
    ranked = [
        (one.target.step or one.golden.step or 0, GRAVITY[root.cause], root.pair.order, number, root)
        for number, one in enumerate(comparisons)
        for root in one.roots
    ]
    return _in_places(comparisons, ranked)


def _in_places(comparisons: Sequence[Comparison], ranked: "Sequence[_Ranked]") -> "list[Comparison]":
    found: dict[int, list[Root]] = defaultdict(list)
    for place, (*_, number, root) in enumerate(sorted(ranked, key=lambda one: one[:4]), 1):
        found[number].append(replace(root, place=place))
    return [replace(one, roots=tuple(found[number])) for number, one in enumerate(comparisons)]


class _Arrival(NamedTuple):
    """A tensor of another rank, and whether its error descends from a root there."""

    rank: int
    finding: Finding
    tainted: bool


class _Ranks:
    """The ranks of one step."""

    def __init__(
        self, comparisons: "Sequence[Comparison]", updates: "Sequence[Updates]", by_round_off: bool, rules: Rulebook
    ) -> None:
        self._numbers = [one.rank for one in comparisons]
        self._walks = [
            Walk(one.findings, by_round_off, rules, told, one.left_out) for one, told in zip(comparisons, updates)
        ]
        if len(comparisons) > 1:
            for walk, number in zip(self._walks, self._numbers):
                _without_buffers(walk, number)
        self._read = dict(self._by_content()) if len(comparisons) > 1 else {}
        sequences = [[_golden(node) for node in walk.nodes] for walk in self._walks]
        read = {place: [sent.place for sent in some] for place, some in self._read.items()}
        self._told = Communications(sequences, self._numbers, read)
        self._noise: Optional[Noise] = None  # where statistics are all there is
        measured = any(one.measurement.moments for told in comparisons for one in told.findings)
        if by_round_off and not measured and rules.uses("suspected"):
            nodes = [node for walk in self._walks for node in walk.nodes]
            self._noise = Noise(nodes, all(one.are_first for one in updates), max(one.unproven for one in updates))
        self._from: dict[Place, _Arrival] = {}  # where an error arrives → what brought it

    def visit(self) -> None:
        """Walks all ranks. Of a collective, those first whose own inputs are farthest off. Of the noise only the first
        that stands out of it matters, and the same operator of other ranks: nothing else behind is held against it."""
        for group in self._told.in_order():
            for place in sorted(group, key=self._own_error, reverse=True) if len(group) > 1 else group:
                self._receive(place)
                node = self._node(place)
                if self._noise is not None and self._noise.is_asked(node):
                    self._noise.visit(node, self._walks[place.rank].past)
                self._walks[place.rank].visit(node)

    def finished(self) -> "Iterator[Told]":
        """For each rank its findings, and its roots with their clocks."""
        for rank, walk in enumerate(self._walks):
            findings, roots = walk.finished()
            places = {node.pair.order: Place(rank, at) for at, node in enumerate(walk.nodes)}
            yield (
                findings,
                [(self._told.clocks[places[root.pair.order]], self._explained(places, root)) for root in roots],
            )

    def suspected(self) -> "list[Told]":
        """The same; where statistics are all there is, as the noise in them tells."""
        told = [*self.finished()]
        if self._noise is None:
            return told
        order = [place for group in self._told.in_order() for place in group]
        at = [(place.rank, self._told.clocks[place], self._node(place)) for place in order]
        return concluded(at, told, self._noise)

    def _explained(self, places: "dict[int, Place]", root: Root) -> Root:
        """A root that passes on what arrived says from where."""
        source = self._from.get(places[root.pair.order])
        if source is None or root.cause is not Cause.PROPAGATED:
            return root
        rank, pair = self._numbers[source.rank], source.finding.pair
        words = "arrived from {which} rank, where {op} {slot} differs"
        if rank is not None:
            words = "arrived from rank {which}, where {op} {slot} differs"
        which = "another" if rank is None else rank
        found = reason("another rank", words, which=which, op=pair.operator.name, slot=pair.slot)
        return replace(root, evidence=(found, *root.evidence), rule="collective")

    def _node(self, place: Place) -> OperatorFindings:
        return self._walks[place.rank].nodes[place.at]

    def _own_error(self, place: Place) -> float:
        return max(map(error_size, self._node(place).inputs), default=0.0) if place in self._told.given else 0.0

    def _receive(self, place: Place) -> None:
        """Tells an operator what comes to it from other ranks."""
        node, walk = self._node(place), self._walks[place.rank]
        for sent in self._read.get(place, ()):
            arrival = self._arrival(sent.place, sent.finding)
            if walk.past.trail.by_content(arrival.finding) is None:
                walk.past.trail.read(Source(arrival.finding, arrival.tainted))
                if arrival.tainted:
                    self._from[place] = arrival
        given = [(one, finding) for one in self._told.given.get(place, ()) for finding in self._node(one).inputs]
        arrivals = [self._arrival(one, finding) for one, finding in given]
        node.context += [one.finding for one in arrivals]
        node.arrived = bool(arrivals)
        guilty = [one for one in arrivals if one.tainted]
        if guilty:
            node.carried = True
            self._from[place] = max(guilty, key=lambda one: error_size(one.finding))

    def _arrival(self, place: Place, finding: Finding) -> _Arrival:
        """A tensor as the walk of its own rank sees it."""
        walk = self._walks[place.rank]
        seen = walk.revised.get(id(finding), finding)
        source = walk.past.trail.source(finding)
        return _Arrival(place.rank, seen, source is not None and source.tainted and differs(seen))

    def _by_content(self) -> "Iterator[tuple[Place, list[_Sent]]]":
        """Tensors that an operator reads, nothing on its rank wrote or read before, and another rank wrote or sent:
        receives that return before the data is there, or that were not recorded."""
        made: list[Producers[_Sent]] = [Producers() for _ in self._walks]
        makers: dict[Hashable, dict[int, None]] = defaultdict(dict)  # the ranks that made something of a key
        wanted: dict[Place, list[Fingerprint]] = defaultdict(list)
        for rank, walk in enumerate(self._walks):
            seen: Producers[bool] = Producers()
            for at, node in enumerate(walk.nodes):
                place, is_sent = Place(rank, at), sends(_golden(node))
                for at_slot, finding in enumerate((*node.inputs, *node.outputs)):
                    mark, is_read = fingerprint(finding), at_slot < len(node.inputs)
                    if mark is None:
                        continue
                    is_new = seen.find(mark) is None
                    seen.add(mark, True)
                    if is_new and is_read:
                        wanted[place].append(mark)
                    wrote = is_new and not is_read and not node.op.has("collective")
                    if wrote or (is_read and is_sent):
                        made[rank].add(mark, _Sent(place, finding))
                        makers[mark.key][rank] = None
        for place, some in wanted.items():
            others = ((mark, made[rank]) for mark in some for rank in makers.get(mark.key, ()) if rank != place.rank)
            found = [sent for mark, one in others if (sent := one.find(mark))]
            if found:
                yield place, found


class _Sent(NamedTuple):
    """A tensor that a rank wrote or sent, and where."""

    place: Place
    finding: Finding


def _golden(node: OperatorFindings) -> Operator:
    return node.pair.golden_op or node.operator


def _without_buffers(walk: Walk, rank: Optional[int]) -> None:
    """What lay in memory before something was received there means nothing."""
    for node in walk.nodes:
        operator = _golden(node)
        for finding in list(node.inputs) if node.op.has("receives") else ():
            tensor = finding.pair.golden or finding.pair.target
            if tensor is not None and is_buffer(operator, tensor, rank):
                node.inputs.remove(finding)
                walk.revised[id(finding)] = disregard(finding)
