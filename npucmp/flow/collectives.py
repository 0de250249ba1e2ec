"""Communication between ranks of one step, and the order of the operators of all ranks.

A collective transfers the inputs of every rank of its group; a receive, the input of the matching send. Collectives are
matched by name, sends and receives by peer and count.

Order numbers of different ranks are not comparable. Each operator gets a clock: one more than those of all operators
for which it waits, on any rank (Lamport, Time, Clocks and the Ordering of Events, 1978). An operator with a smaller
clock cannot depend on an operator with a larger one.

Sends and receives of two ranks are matched also if no peer is recorded. A tensor that no operator of a rank wrote or
read before, and that another rank wrote or sent, came from there (asynchronous receives, dumps of inputs or of one
phase). The memory that a receive or a gather was given to write to is no input. Groups are read where msprobe records
them (`group_ranks`); elsewhere collectives of one name in two groups side by side are taken for one.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from itertools import groupby
from typing import Iterator, Mapping, Optional, Sequence

from npucmp.flow.operators import OperatorPlace
from npucmp.model import Operator, RankGroup
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import peer_of


class Communications:
    """The communication between the operators of several ranks. Each sequence has the operators of a rank in order of
    execution; None replaces an operator that does not communicate.

    numbers  the numbers of the ranks, None if a dump does not record one
    senders  the operators of other ranks that send data to an operator
    joint    operators of other ranks with which it forms one collective; they wait for each other
    read     operators of other ranks that wrote or sent its inputs, as far as the caller knows
    inside   groups of operators that communicate inside and record no collective, as far as the caller knows
    """

    def __init__(
        self,
        sequences: Sequence[Sequence[Optional[Operator]]],
        numbers: Sequence[Optional[int]],
        read: Optional[Mapping[OperatorPlace, Sequence[OperatorPlace]]] = None,
        inside: Sequence[Sequence[OperatorPlace]] = (),
    ) -> None:
        self._sequences, self._numbers = sequences, numbers
        self._read = read or {}
        self.senders: dict[OperatorPlace, list[OperatorPlace]] = {}
        self.joint: dict[OperatorPlace, list[OperatorPlace]] = {}
        if len(sequences) > 1:
            self._match_calls()
            self._match_peers()
        for group in inside:
            for place in group:
                self.joint[place] = self.senders[place] = [one for one in group if one != place]
        self.is_apart = not (self.senders or self.joint or self._read)  # whether no operator waits for another rank
        self._made_clocks = {} if self.is_apart else self._clocks()

    def clock(self, rank: int, at: int) -> int:
        """Return the clock of an operator."""
        return at + 1 if self.is_apart else self._made_clocks[OperatorPlace(rank, at)]

    def in_order(self) -> Iterator[list[OperatorPlace]]:
        """Yield all operators, those of one clock together."""
        if self.is_apart:
            for at in range(max(map(len, self._sequences), default=0)):
                yield [OperatorPlace(rank, at) for rank, own in enumerate(self._sequences) if at < len(own)]
            return
        clocks = self._made_clocks
        for _, group in groupby(sorted(clocks, key=lambda place: (clocks[place], place)), clocks.get):
            yield list(group)

    def _communicating(self) -> Iterator[tuple[OperatorPlace, Operator]]:
        for rank, sequence in enumerate(self._sequences):
            for at, operator in enumerate(sequence):
                if operator is not None and op_type_of(operator).has("collective"):
                    yield OperatorPlace(rank, at), operator

    def _match_calls(self) -> None:
        """Match collectives of one name and group, if it is recorded, and of one shape if the ranks' inputs are
        summed."""
        calls: dict[object, list[OperatorPlace]] = defaultdict(list)
        sources: dict[object, set[Optional[int]]] = defaultdict(set)
        for place, operator in self._communicating():
            op = op_type_of(operator)
            if op.has("point to point"):
                continue
            read = [one.shape for one in operator.tensors if not one.is_output]
            key = operator.name, groups_of(operator), tuple(read) if op.has("sums ranks") else ()
            calls[key].append(place)
            sources[key].add(peer_of(operator) if op.has("one to all") else None)
        for call, group in calls.items():
            source = next(iter(sources[call])) if len(sources[call]) == 1 else None
            for place in group:
                self.joint[place] = [one for one in group if one.rank != place.rank]
                self.senders[place] = [one for one in self.joint[place] if source in (None, self._numbers[one.rank])]

    def _match_peers(self) -> None:
        """Match the sends and receives between two ranks, first with first."""
        sends: dict[tuple[int, int], list[OperatorPlace]] = defaultdict(list)
        receives: dict[tuple[int, int], list[OperatorPlace]] = defaultdict(list)
        for place, operator in self._communicating():
            op = op_type_of(operator)
            peer = self._index(place.rank, peer_of(operator)) if op.has("point to point") else None
            if peer is not None and op.has("receives"):
                receives[peer, place.rank].append(place)
            elif peer is not None:
                sends[place.rank, peer].append(place)
        for between, receivers in receives.items():
            self.senders.update((receive, [send]) for receive, send in zip(receivers, sends[between]))

    def _index(self, own: int, number: Optional[int]) -> Optional[int]:
        """The index of the rank with a number. With two ranks, an unknown number can only be the other one."""
        if number is not None and number in self._numbers:
            return self._numbers.index(number)
        return 1 - own if len(self._numbers) == 2 else None

    def _clocks(self) -> dict[OperatorPlace, int]:
        """Compute the clocks. A rank advances until it waits. If all wait for each other (wrongly matched calls), the
        rank with the smallest clock advances."""
        clocks: dict[OperatorPlace, int] = {}
        at, now = [0] * len(self._sequences), [0] * len(self._sequences)

        def before(place: OperatorPlace) -> list[OperatorPlace]:
            predecessors, together = (
                (*self.senders.get(place, ()), *self._read.get(place, ())),
                self.joint.get(place, ()),
            )
            return [one for one in predecessors if one not in together] if predecessors else []

        def awaited(rank: int) -> Optional[int]:
            """A rank that must advance before this one can; None if there is none."""
            place = OperatorPlace(rank, at[rank])
            behind = (one.rank for one in before(place) if at[one.rank] <= one.at)
            return next(behind, next((one.rank for one in self.joint.get(place, ()) if at[one.rank] < one.at), None))

        ready: list[tuple[int, int]] = []  # a heap of (clock, rank) of ranks that can advance; outdated once they did
        waiting: set[int] = set()
        awaiting: dict[int, list[int]] = defaultdict(list)  # by rank: those that may be ready once it advances

        def look(rank: int) -> None:
            other = awaited(rank)
            if other is None:
                heappush(ready, (now[rank], rank))
                waiting.discard(rank)
            else:
                awaiting[other].append(rank)
                waiting.add(rank)

        for rank, sequence in enumerate(self._sequences):
            if sequence:
                look(rank)
        while ready or waiting:
            when, rank = heappop(ready) if ready else min((now[rank], rank) for rank in waiting)
            if when < now[rank]:
                continue
            place = OperatorPlace(rank, at[rank])
            together = [one for one in (place, *self.joint.get(place, ())) if at[one.rank] == one.at]
            earlier = [clocks[one] for one in before(place) if one in clocks]
            clock = max([*earlier, *(now[one.rank] for one in together)]) + 1
            for one in together:
                clocks[one], now[one.rank], at[one.rank] = clock, clock, one.at + 1
                waiting.discard(one.rank)
            moved = dict.fromkeys(one.rank for one in together)
            hopeful = {*moved, *(other for rank in moved for other in awaiting.pop(rank, ()) if other in waiting)}
            for rank in hopeful:
                if at[rank] < len(self._sequences[rank]):
                    look(rank)
        return clocks


def sends(operator: Operator) -> bool:
    """Return whether an operator sends its input to one other rank."""
    op = op_type_of(operator)
    return op.has("point to point") and not op.has("receives")


def groups_of(operator: Operator) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks that an operator names."""
    return tuple(tuple(sorted(one)) for one in operator.arguments.values() if isinstance(one, RankGroup))
