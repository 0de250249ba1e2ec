"""Which operator of which rank is asked for what, and when: all that can be said of a step without walking."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.localise.arrivals import Contents, read_elsewhere
from npucmp.localise.communications import Communications
from npucmp.localise.nodes import Place
from npucmp.localise.rank_equality import Inequality, Output, inequalities
from npucmp.model import Operator


class Ask(NamedTuple):
    """Of a rank: tensor `number` of operator `at`, as its walk sees it when `visited` operators were walked."""

    visited: int
    at: int
    number: int


class Crossing(NamedTuple):
    """What others need to know of a rank before any walk.

    sequence  its operators in order, None for one that tells no other rank anything
    errors    of those that do: how far their own inputs are off; `inputs`: how many those are
    orders    where they stand in the order of both runs
    outputs   of its collectives that other ranks may hold too
    wanted, made  of tensors that it may read from others, and that they may read from it: what to know them by
    """

    rank: Optional[int]
    sequence: list[Optional[Operator]]
    errors: dict[int, float]
    inputs: dict[int, int]
    orders: list[int]
    outputs: Mapping[int, Sequence[Output]]
    wanted: frozenset[bytes]
    made: frozenset[bytes]


class Schedule:
    """Who is asked for what, and when: all that can be said without walking."""

    def __init__(self, ranks: Sequence[Crossing], known: Sequence[Contents]) -> None:
        self._ranks = ranks
        read = {Place(*place): some for place, some in read_elsewhere(known)}
        makers = {place: [Place(*sent[:2]) for sent in some] for place, some in read.items()}
        told = Communications([one.sequence for one in ranks], [one.rank for one in ranks], makers)
        self._given = told.given
        self.clocks: list[list[int]] = [[told.clocks[Place(rank, at)] for at in range(len(one.sequence))]
                                          for rank, one in enumerate(ranks)]  # fmt: skip
        self.unequal: dict[int, dict[int, dict[str, Inequality]]] = defaultdict(dict)  # by rank, by operator
        for group in told.in_order():
            held = [(ranks[place.rank].rank or 0, ranks[place.rank].outputs.get(place.at, ())) for place in group]
            for place, unequal in zip(group, inequalities(held)):
                if unequal:
                    self.unequal[place.rank][place.at] = unequal
        self.asks: dict[int, dict[Ask, None]] = defaultdict(dict)  # by rank
        self.letters: dict[Place, tuple[list[tuple[int, Ask]], list[tuple[int, Ask]]]] = {}
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

    def in_order(self) -> list[Place]:
        """All operators as they are asked."""
        every = (Place(rank, at) for rank, some in enumerate(self.clocks) for at in range(len(some)))
        return sorted(every, key=lambda one: (self.clocks[one.rank][one.at], self._turn(one)))

    def _turn(self, place: Place) -> tuple[float, Place]:
        error = self._ranks[place.rank].errors.get(place.at, 0.0) if place in self._given else 0.0
        return -error, place
