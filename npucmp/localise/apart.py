"""The ranks of one step, each walked by itself, be it in another process: what they tell each other travels as letters.

What a rank's walk takes from other ranks is what `ranks.py` asks of them: tensors that another rank put into a
collective, sent, or wrote, as the walk there saw them when it was asked, and whether their error descends from a root
there. In which order the operators of all ranks are asked follows from their names, shapes and own errors alone, so
that it is known before anything is walked (`Schedule`). An answer then depends on earlier ones only.

So each rank is walked as if no error that arrives descended from a root, and says what others ask of it; those to whom
that is news are walked again, until nobody has any. The first answer in that order is right at once, each further one
when those before it are: what is left when no answer changes is what walking all side by side would have found. Few
rounds are enough, as an error that a rank hands on makes the same of the tensors behind it whether it was born there
or arrived.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from hashlib import blake2b
from typing import Any, Mapping, NamedTuple, Optional, Protocol, Sequence

from npucmp.localise.arrivals import (
    Arrival,
    Content,
    Contents,
    arrived,
    as_seen,
    contents,
    golden_of,
    own_error,
    take_in,
    tensor_of,
    without_buffers,
    without_others,
)
from npucmp.localise.asked import Added, Asked, StepNoise
from npucmp.localise.noise import Noise, counted, kind_of
from npucmp.localise.noise_facts import Facts, RankFacts, facts_of, joined
from npucmp.localise.producers import Fingerprint
from npucmp.localise.rank_equality import Unequal, outputs_of
from npucmp.localise.root import Told
from npucmp.localise.rules import Rulebook
from npucmp.localise.schedule import Ask, Crossing, Schedule
from npucmp.localise.suspects import Candidate, candidates, first_of
from npucmp.localise.updates import Updates
from npucmp.localise.walk import Walk
from npucmp.model import Comparison, Finding, Operator, Root
from npucmp.model.optypes import op_type_of

PILOTS = 2  # ranks that are walked before the others where there is noise: behind what stands out there, nobody is held
Heard = Mapping[int, "tuple[Sequence[Arrival], Sequence[Arrival]]"]  # by operator: what it reads, what others put in


class Beforehand(NamedTuple):
    """What others need to know of a rank before any walk; of noise its facts, and what its operators add to it as long
    as nothing comes from others."""

    crossing: Crossing
    facts: Optional[RankFacts]
    added: Added


class Rank:
    """One rank of a step; `alone` if the step has no other."""

    def __init__(
        self, one: Comparison, updates: Updates, by_round_off: bool, rules: Rulebook, alone: bool = False
    ) -> None:
        self._rank = one.rank
        self._walk = Walk(one.findings, by_round_off, rules, updates, one.left_out)
        if alone:
            without_others(self._walk)
        else:
            without_buffers(self._walk, one.rank)

    def beforehand(self, noisy: bool) -> Beforehand:
        """What others need to know of it, whatever they tell; noisy: of noise too."""
        if not noisy:
            return Beforehand(self.crossing(), None, [])
        facts = facts_of(self._walk.nodes)
        return Beforehand(self.crossing(), facts, self.contributions(joined([facts]), {}))

    def crossing(self) -> Crossing:
        operators = [golden_of(node) for node in self._walk.nodes]
        joint = [at for at, operator in enumerate(operators) if op_type_of(operator).has("collective")]
        sequence: list[Optional[Operator]] = [None] * len(operators)
        for at in joint:
            sequence[at] = operators[at]._replace(stack=())
        nodes = {at: self._walk.nodes[at] for at in joint}
        known = contents(self._walk.nodes)
        return Crossing(
            self._rank,
            sequence,
            {at: own_error(node) for at, node in nodes.items()},
            {at: len(node.inputs) for at, node in nodes.items()},
            [node.pair.order for node in self._walk.nodes],
            {at: outputs for at, node in nodes.items() if (outputs := outputs_of(node))},
            *(frozenset(_digest(content.mark.key) for content in some) for some in known),
        )

    def contents(self, digests: frozenset[bytes]) -> Contents:
        """Those of its tensors that are known by these digests, in a shape that survives a process."""
        known = contents(self._walk.nodes)
        return Contents(*([_told(one) for one in some if _digest(one.mark.key) in digests] for some in known))

    def raw(self, asks: Sequence[Ask]) -> list[Arrival]:
        """What is asked for, before anything was walked."""
        return [Arrival(self._rank, self._tensor(one), False) for one in asks]

    def contributions(self, facts: Facts, heard: Heard) -> Added:
        """Of each operator its kind, and what it adds to the noise."""
        noise, found = Noise(facts), []
        for at, node in enumerate(self._walk.nodes):
            take_in(self._walk, node, *heard.get(at, ((), ())))
            found.append((kind_of(node), noise.contribution(node)))
        return found

    def walked(
        self,
        clocks: Sequence[int],
        heard: Heard,
        asks: Sequence[Ask],
        asked: Optional[Asked] = None,
        unequal: Optional[Unequal] = None,
    ) -> tuple[Told, list[Arrival], list[Candidate]]:
        """Findings and roots, these with their clocks; what is asked for; who may be the first out of the noise.
        `unequal` are outputs of collectives that differ from those of other ranks, by operator."""
        walk = self._walk
        for at, some in (unequal or {}).items():
            walk.nodes[at].unequal.update(some)
        noise = Noise(asked.facts) if asked else None
        brought: dict[int, Arrival] = {}
        found: dict[Ask, Arrival] = {}
        when: dict[int, list[Ask]] = defaultdict(list)
        for ask in asks:
            when[ask.visited].append(ask)
        for at, node in enumerate(walk.nodes):
            found.update((ask, as_seen(walk, self._rank, self._tensor(ask))) for ask in when.get(at, ()))
            one = take_in(walk, node, *heard.get(at, ((), ())))
            if one is not None:
                brought[node.pair.order] = one
            if noise and asked and (not noise.standing if at < asked.until else node.operator.name == asked.name):
                noise.visit(node, walk.past, asked.before[at])
            walk.visit(node)
        last = when.get(len(walk.nodes), ())
        found.update((ask, as_seen(walk, self._rank, self._tensor(ask))) for ask in last)
        clock_of = self._clocks(clocks)
        findings, roots = walk.finished()
        told = [(clock_of[root.pair.order], arrived(root, brought[order]) if order in brought else root)
                for root in roots for order in (root.pair.order,)]  # fmt: skip
        first = self._candidates(told, 0, clocks, noise, asked) if noise and asked else []
        return (findings, told), [found[ask] for ask in asks], first

    def again(self, told: Told, clocks: Sequence[int], heard: Heard, asked: Asked) -> list[Candidate]:
        """Of what is behind the first that stands out: who may be the first. What was found when all operators were
        walked is known: neither findings nor roots depend on noise."""
        walk, noise, end = self._walk, Noise(asked.facts), self._end(clocks, asked)
        for at, node in enumerate(walk.nodes[:end] if end > asked.until else ()):
            take_in(walk, node, *heard.get(at, ((), ())))
            if at >= asked.until and node.operator.name == asked.name:
                noise.visit(node, walk.past, asked.before[at])
            walk.visit(node)
        return self._candidates(told[1], asked.until, clocks, noise, asked)

    def _candidates(
        self, roots: Sequence[tuple[int, Root]], start: int, clocks: Sequence[int], noise: Noise, asked: Asked
    ) -> list[Candidate]:
        """Who may be the first, of the operators from number `start` on that are asked."""
        rooted = {(0, root.pair.order): root for _, root in roots}
        some = zip(clocks, self._walk.nodes[: self._end(clocks, asked)])
        return [*candidates(((0, *one) for one in some), rooted, noise, start)]

    def _end(self, clocks: Sequence[int], asked: Asked) -> int:
        """Behind the last operator that is asked: those of the clock of the first that stands out, and of its name."""
        nodes = enumerate(self._walk.nodes)
        alike = [at + 1 for at, node in nodes if at >= asked.until and node.operator.name == asked.name]
        return max([bisect_right(clocks, asked.clock), *alike[-1:]])

    def _clocks(self, clocks: Sequence[int]) -> dict[int, int]:
        return {node.pair.order: clock for node, clock in zip(self._walk.nodes, clocks)}

    def _tensor(self, ask: Ask) -> Finding:
        return tensor_of(self._walk.nodes[ask.at], ask.number)


class NoiseOf(NamedTuple):
    """What the step before says of noise: whether this is the first, and what it may have made of parameters."""

    first: bool
    unproven: float


class Everyone(Protocol):
    """All ranks of a step, wherever they are. Each call begins with fresh ones: a walk leaves marks.

    Of a rank that was walked, what was found is the first argument, and lies where that rank is."""

    def __call__(self, what: str, whom: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """The method of Rank of that name, or `concluded`, of these ranks with these arguments."""


def walked_apart(count: int, everyone: Everyone, noise: Optional[NoiseOf] = None) -> list[Told]:
    """For each rank its findings, and its roots with their clocks, as `ranks.py` has them of walks side by side. noise:
    statistics are all there is."""
    return _Apart(count, everyone, noise).told()


class _Apart:
    """The ranks of one step."""

    def __init__(self, count: int, everyone: Everyone, noise: Optional[NoiseOf]) -> None:
        self._everyone, self._all, self._noise = everyone, range(count), noise
        known_before = everyone("beforehand", dict.fromkeys(self._all, (noise is not None,)))
        self._before: list[Beforehand] = [known_before[rank] for rank in self._all]
        crossings = [one.crossing for one in self._before]
        both = _shared(crossings)
        known = everyone("contents", dict.fromkeys(self._all, (both,))) if both else {}
        self._schedule = Schedule(crossings, [known.get(rank, Contents([], [])) for rank in self._all])
        self._asks = {rank: [*asks] for rank, asks in self._schedule.asks.items()}
        self._answers: dict[tuple[int, Ask], Arrival] = {}
        for rank, raw in everyone("raw", {rank: (asks,) for rank, asks in self._asks.items()}).items():
            self._answers.update(((rank, ask), one) for ask, one in zip(self._asks[rank], raw))
        self._told: dict[int, Told] = {}
        self._first: dict[int, list[Candidate]] = {}

    def told(self) -> list[Told]:
        if self._noise is None:
            self._walk(None)
            return [self._told[rank] for rank in self._all]
        facts = joined([one.facts for one in self._before if one.facts], *self._noise)
        noise = StepNoise(facts, self._added(facts), self._schedule.in_order(), self._schedule.clocks)
        assumed = self._walk(noise)
        start, asked = self._start(noise)
        clocks = self._schedule.clocks
        known = {
            rank: (self._told[rank], clocks[rank], self._heard(rank), asked[rank])
            for rank in self._all
            if start != assumed[rank]
        }
        for rank, behind in self._everyone("again", known).items() if known else ():
            earlier = {*clocks[rank][: asked[rank].until]}
            known_before = [one for one in self._first[rank] if one.clock in earlier]
            self._first[rank] = [*known_before, *(one._replace(rank=rank) for one in behind)]
        every = [one for some in self._first.values() for one in some]
        if start is not None:
            largest = noise.movements(start)
            every = [one._replace(standing=one.standing and counted(one.standing, largest)) for one in every]
        first = first_of(every, len(self._all))
        orders = [one.crossing.orders for one in self._before]
        sent = {rank: (self._told[rank], rank, first, dict(zip(orders[rank], clocks[rank]))) for rank in self._all}
        found = self._everyone("concluded", sent)
        return [found[rank] for rank in self._all]

    def _added(self, facts: Facts) -> dict[int, Added]:
        """What ranks add to the noise. It is another thing than they said beforehand only where others put something
        in, or know of other modules that have operators inside."""
        added = {rank: one.added for rank, one in enumerate(self._before)}
        heard = {rank: self._heard(rank) for rank in self._all}
        others = {
            rank: (facts, heard[rank])
            for rank, one in enumerate(self._before)
            if any(given for _, given in heard[rank].values())
            or (one.facts and one.facts.containing != facts.containing)
        }
        added.update(self._everyone("contributions", others) if others else {})
        return added

    def _start(self, noise: Optional[StepNoise]) -> tuple[Optional[int], Mapping[int, Asked]]:
        """The place in the order of the first that stands out, as far as is known, and what is asked if it is that."""
        return (None, {}) if noise is None else noise.asked(one for some in self._first.values() for one in some)

    def _walk(self, noise: Optional[StepNoise]) -> dict[int, Optional[int]]:
        """All ranks, until nobody has news for another. Of each what was taken for the first that stands out."""
        clocks, letters, todo = self._schedule.clocks, self._schedule.letters.items(), [*self._all]
        assumed: dict[int, Optional[int]] = {}
        while todo:
            some = todo[:PILOTS] if noise and not self._told else todo
            start, asked = self._start(noise)
            assumed.update(dict.fromkeys(some, start))
            sent: dict[int, tuple[Any, ...]] = {
                rank: (
                    clocks[rank],
                    self._heard(rank),
                    self._asks.get(rank, []),
                    asked.get(rank),
                    self._schedule.unequal.get(rank, {}),
                )
                for rank in some
            }
            news = set()
            for rank, (found, said, first) in self._everyone("walked", sent).items():
                self._told[rank], self._first[rank] = found, [one._replace(rank=rank) for one in first]
                for ask, one in zip(self._asks.get(rank, []), said):
                    if _differ(one, self._answers[rank, ask]):
                        news.add((rank, ask))
                        self._answers[rank, ask] = one
            again = {place.rank for place, some in letters if not news.isdisjoint(one for each in some for one in each)}
            todo = sorted({*todo[len(some) :], *again})
            if not todo:  # with news, what stood out before may do so no more
                now = self._start(noise)[0]
                todo = [rank for rank, one in assumed.items() if one is not None and (now is None or one < now)]
        return assumed

    def _heard(self, rank: int) -> dict[int, tuple[list[Arrival], list[Arrival]]]:
        return {
            place.at: ([self._answers[one] for one in sent], [self._answers[one] for one in given])
            for place, (sent, given) in self._schedule.letters.items()
            if place.rank == rank
        }


def _shared(crossings: Sequence[Crossing]) -> frozenset[bytes]:
    """Digests of what one rank wants and any has made."""
    made = frozenset().union(*(one.made for one in crossings))
    return frozenset().union(*(one.wanted & made for one in crossings)) if len(crossings) > 1 else frozenset()


def _differ(one: Arrival, other: Arrival) -> bool:
    """Whether an answer is another one than before. What was measured is the same; NaN is NaN."""
    return one.tainted != other.tainted or repr(one.finding[1:]) != repr(other.finding[1:])


def _digest(key: object) -> bytes:
    """Equal keys have equal ones, whichever process made them; others hardly ever."""
    return blake2b(repr(_plain(key)).encode("utf-8", "backslashreplace"), digest_size=8).digest()


def _plain(key: object) -> tuple[object, ...]:
    """A key whose parts are equal as text if they are equal: 1 is 1.0, -0.0 is 0.0, NaN is NaN."""
    parts = key if isinstance(key, tuple) else (key,)
    return tuple(one if isinstance(one, str) else "nan" if one != one else float(one) + 0.0 for one in parts)


def _told(one: Content) -> Content:
    mark = one.mark
    return one._replace(mark=Fingerprint(_plain(mark.key), mark.sums, mark.scale))
