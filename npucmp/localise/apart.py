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

from bisect import bisect_left
from collections import defaultdict
from hashlib import blake2b
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Protocol, Sequence

from npucmp.localise.arrivals import (
    Arrival,
    Content,
    Contents,
    arrived,
    as_seen,
    contents,
    golden_of,
    own_error,
    read_elsewhere,
    take_in,
    tensor_of,
    without_buffers,
)
from npucmp.localise.communications import Communications, Place
from npucmp.localise.producers import Fingerprint
from npucmp.localise.rules import Rulebook
from npucmp.localise.suspects import Told
from npucmp.localise.updates import Updates
from npucmp.localise.walk import Walk
from npucmp.model import Comparison, Finding, Operator
from npucmp.model.optypes import op_type_of

Heard = Mapping[int, "tuple[Sequence[Arrival], Sequence[Arrival]]"]  # by operator: what it reads, what others put in


class Ask(NamedTuple):
    """Of a rank: tensor `number` of operator `at`, as its walk sees it when `visited` operators were walked."""

    visited: int
    at: int
    number: int


class Crossing(NamedTuple):
    """What others need to know of a rank before any walk.

    sequence  its operators in order, None for one that tells no other rank anything
    errors    of those that do: how far their own inputs are off; `inputs`: how many those are
    wanted, made  of tensors that it may read from others, and that they may read from it: what to know them by
    """

    rank: Optional[int]
    sequence: "list[Optional[Operator]]"
    errors: "dict[int, float]"
    inputs: "dict[int, int]"
    wanted: "frozenset[bytes]"
    made: "frozenset[bytes]"


class Rank:
    """One rank of a step; `alone` if the step has no other."""

    def __init__(
        self, one: Comparison, updates: Updates, by_round_off: bool, rules: Rulebook, alone: bool = False
    ) -> None:
        self._rank = one.rank
        self._walk = Walk(one.findings, by_round_off, rules, updates, one.left_out)
        if not alone:
            without_buffers(self._walk, one.rank)

    def crossing(self) -> Crossing:
        operators = [golden_of(node) for node in self._walk.nodes]
        joint = [at for at, operator in enumerate(operators) if op_type_of(operator).has("collective")]
        sequence: "list[Optional[Operator]]" = [None] * len(operators)
        for at in joint:
            sequence[at] = operators[at]._replace(stack=())
        nodes = {at: self._walk.nodes[at] for at in joint}
        known = contents(self._walk.nodes)
        return Crossing(
            self._rank,
            sequence,
            {at: own_error(node) for at, node in nodes.items()},
            {at: len(node.inputs) for at, node in nodes.items()},
            *(frozenset(_digest(content.mark.key) for content in some) for some in known),
        )

    def contents(self, digests: "frozenset[bytes]") -> Contents:
        """Those of its tensors that are known by these digests, in a shape that survives a process."""
        known = contents(self._walk.nodes)
        return Contents(*([_told(one) for one in some if _digest(one.mark.key) in digests] for some in known))

    def raw(self, asks: "Sequence[Ask]") -> "list[Arrival]":
        """What is asked for, before anything was walked."""
        return [Arrival(self._rank, self._tensor(one), False) for one in asks]

    def walked(self, clocks: "Sequence[int]", heard: Heard, asks: "Sequence[Ask]") -> "tuple[Told, list[Arrival]]":
        """Findings and roots, these with their clocks; and what is asked for."""
        walk = self._walk
        brought: "dict[int, Arrival]" = {}
        found: "dict[Ask, Arrival]" = {}
        when: "dict[int, list[Ask]]" = defaultdict(list)
        for ask in asks:
            when[ask.visited].append(ask)
        for at, node in enumerate(walk.nodes):
            found.update((ask, as_seen(walk, self._rank, self._tensor(ask))) for ask in when.get(at, ()))
            one = take_in(walk, node, *heard.get(at, ((), ())))
            if one is not None:
                brought[node.pair.order] = one
            walk.visit(node)
        last = when.get(len(walk.nodes), ())
        found.update((ask, as_seen(walk, self._rank, self._tensor(ask))) for ask in last)
        places = {node.pair.order: at for at, node in enumerate(walk.nodes)}
        findings, roots = walk.finished()
        told = [
            (clocks[places[root.pair.order]], arrived(root, brought[order]) if order in brought else root)
            for root in roots
            for order in (root.pair.order,)
        ]
        return (findings, told), [found[ask] for ask in asks]

    def _tensor(self, ask: Ask) -> Finding:
        return tensor_of(self._walk.nodes[ask.at], ask.number)


class Everyone(Protocol):
    """All ranks of a step, wherever they are. Each call begins with fresh ones: a walk leaves marks."""

    def __call__(self, what: str, whom: "Mapping[int, tuple[Any, ...]]") -> "dict[int, Any]":
        """The method of Rank of that name, of these ranks with these arguments."""


class Schedule:
    """Who is asked for what, and when: all that can be said without walking."""

    def __init__(self, ranks: "Sequence[Crossing]", known: "Sequence[Contents]") -> None:
        self._ranks = ranks
        read = {Place(*place): some for place, some in read_elsewhere(known)}
        makers = {place: [Place(*sent[:2]) for sent in some] for place, some in read.items()}
        told = Communications([one.sequence for one in ranks], [one.rank for one in ranks], makers)
        self._given = told.given
        self.clocks: "list[list[int]]" = [[told.clocks[Place(rank, at)] for at in range(len(one.sequence))]
                                          for rank, one in enumerate(ranks)]  # fmt: skip
        self.asks: "dict[int, dict[Ask, None]]" = defaultdict(dict)  # by rank
        self.letters: "dict[Place, tuple[list[tuple[int, Ask]], list[tuple[int, Ask]]]]" = {}
        for place in {**read, **told.given}:
            sent = [(rank, self._ask(place, rank, at, number)) for rank, at, number in read.get(place, ())]
            given = [
                (one.rank, self._ask(place, one.rank, one.at, number))
                for one in told.given.get(place, ())
                for number in range(ranks[one.rank].inputs[one.at])
            ]
            self.letters[place] = sent, given
            for rank, ask in (*sent, *given):
                self.asks[rank][ask] = None

    def _ask(self, place: Place, rank: int, at: int, number: int) -> Ask:
        """How far another rank is when it is the turn of an operator: operators of one clock that something is put into
        go by their own errors, the largest first."""
        clock, clocks = self.clocks[place.rank][place.at], self.clocks[rank]
        visited = bisect_left(clocks, clock)
        if visited < len(clocks) and clocks[visited] == clock:
            visited += self._turn(Place(rank, visited)) < self._turn(place)
        return Ask(visited, at, number)

    def _turn(self, place: Place) -> "tuple[float, Place]":
        error = self._ranks[place.rank].errors.get(place.at, 0.0) if place in self._given else 0.0
        return -error, place


def walked_apart(count: int, everyone: Everyone) -> "list[Told]":
    """For each rank its findings, and its roots with their clocks, as `ranks.py` has them of walks side by side."""
    all_of_them: "dict[int, tuple[Any, ...]]" = dict.fromkeys(range(count), ())
    crossings = [one for _, one in sorted(everyone("crossing", all_of_them).items())]
    both = _shared(crossings)
    known = everyone("contents", dict.fromkeys(all_of_them, (both,))) if both else {}
    schedule = Schedule(crossings, [known.get(rank, Contents([], [])) for rank in all_of_them])
    asked = {rank: [*asks] for rank, asks in schedule.asks.items()}
    answers: "dict[tuple[int, Ask], Arrival]" = {}
    for rank, raw in everyone("raw", {rank: (asks,) for rank, asks in asked.items()}).items():
        answers.update(((rank, ask), one) for ask, one in zip(asked[rank], raw))
    told: "dict[int, Told]" = {}
    todo = set(all_of_them)
    while todo:
        sent: "dict[int, tuple[Any, ...]]" = {
            rank: (schedule.clocks[rank], dict(_heard(schedule, rank, answers)), asked.get(rank, [])) for rank in todo
        }
        news = set()
        for rank, (found, said) in everyone("walked", sent).items():
            told[rank] = found
            for ask, one in zip(asked.get(rank, []), said):
                if _differ(one, answers[rank, ask]):
                    news.add((rank, ask))
                    answers[rank, ask] = one
        letters = schedule.letters.items()
        todo = {place.rank for place, some in letters if not news.isdisjoint(one for each in some for one in each)}
    return [told[rank] for rank in all_of_them]


def _heard(
    schedule: Schedule, rank: int, answers: "Mapping[tuple[int, Ask], Arrival]"
) -> "Iterator[tuple[int, tuple[list[Arrival], list[Arrival]]]]":
    for place, (sent, given) in schedule.letters.items():
        if place.rank == rank:
            yield place.at, ([answers[one] for one in sent], [answers[one] for one in given])


def _shared(crossings: "Sequence[Crossing]") -> "frozenset[bytes]":
    """Digests of what one rank wants and any has made."""
    made = frozenset().union(*(one.made for one in crossings))
    return frozenset().union(*(one.wanted & made for one in crossings)) if len(crossings) > 1 else frozenset()


def _differ(one: Arrival, other: Arrival) -> bool:
    """Whether an answer is another one than before. What was measured is the same; NaN is NaN."""
    return one.tainted != other.tainted or repr(one.finding[1:]) != repr(other.finding[1:])


def _digest(key: object) -> bytes:
    """Equal keys have equal ones, whichever process made them; others hardly ever."""
    return blake2b(repr(_plain(key)).encode("utf-8", "backslashreplace"), digest_size=8).digest()


def _plain(key: object) -> "tuple[object, ...]":
    """A key whose parts are equal as text if they are equal: 1 is 1.0, -0.0 is 0.0, NaN is NaN."""
    parts = key if isinstance(key, tuple) else (key,)
    return tuple(one if isinstance(one, str) else "nan" if one != one else float(one) + 0.0 for one in parts)


def _told(one: Content) -> Content:
    mark = one.mark
    return one._replace(mark=Fingerprint(_plain(mark.key), mark.sums, mark.scale))
